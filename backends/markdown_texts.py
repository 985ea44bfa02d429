"""The blocks of `--text markdown`: what a chat client's renderer meets, each well-formed and with its blank line.

In: a number. Out: Markdown blocks as strings that can stand in any order, the same on every Python: headings, lists
(nested, numbered, of tasks), tables, quotes, links, emphasis, inline code and fenced code in several languages. The
code is short, harmless and does what it says. What is a token is none of this module's.
"""
from backends.language_texts import TextPicks

MARKDOWN_STARTS = 8                 # so many blocks are a title; one of them begins an answer

_MARKDOWN_TOPICS = ("the harbour log", "daily backups", "the garden plan", "train times", "the recipe index",
                    "room bookings", "the river gauge", "stock counts")
_MARKDOWN_TITLES = ("A guide to", "Notes on", "How to read", "A short look at")
_MARKDOWN_SENTENCES = (
    "Start with the **smallest** step that can be checked.", "Read it *twice* before you change anything.",
    "The result is written to `report.json` in the same folder.", "Most questions end here; the rest need `--verbose`.",
    "See the [reference](https://example.com/docs/reference) for each field.",
    "A longer story is told in [the guide](https://example.com/guide \"The guide\").",
    "It runs once a day, at ***six in the morning***.", "Nothing is lost: old copies stay in `archive/`.",
    "Use `x = 1 < 2 & 3` only where \\*stars\\* are not needed.", "More at <https://example.com/help>.",
    "~~The old way~~ is gone since version 2.", "The numbers are rounded to two places.")
_MARKDOWN_POINTS = (
    "open the file", "check the **first** column", "count the lines", "write down the sum", "run `make check`",
    "ask the [night shift](https://example.com/shift)", "keep a copy", "close the *old* list", "send the summary",
    "look at the last entry")
_MARKDOWN_MARKS = (("- ", "- ", "  - ", "- "), ("1. ", "2. ", "   - ", "3. "), ("* ", "* ", "* ", "* "),
                   ("- [x] ", "- [ ] ", "- [ ] ", "- [x] "))
_MARKDOWN_CELLS = (("Oslo", "12", "yes"), ("Bergen", "7", "no"), ("Kyoto", "31", "yes"), ("Lisbon", "5", "`n/a`"),
                   ("Z\u00fcrich", "18", "**yes**"), ("Porto", "24", "no"))
_MARKDOWN_HEADS = (("Place", "Count", "Open"), ("Name", "Total", "Done"))
_MARKDOWN_RULES = ("| --- | ---: | :---: |", "|---|---|---|", "| :--- | ---: | --- |")

_MARKDOWN_CODE = (
    ("python", 'def total(rows):\n    """Sum of the second column."""\n'
               '    return sum(int(row[1]) for row in rows)\n\n\n'
               'print(total([("Oslo", "12"), ("Kyoto", "31")]))'),
    ("javascript", "const rows = [[\"Oslo\", 12], [\"Kyoto\", 31]];\n"
                   "const total = rows.reduce((sum, [, n]) => sum + n, 0);\n"
                   "console.log(`total: ${total}`);"),
    ("typescript", "type Row = { place: string; count: number };\n\n"
                   "export function total(rows: Row[]): number {\n"
                   "  return rows.reduce((sum, row) => sum + row.count, 0);\n}"),
    ("bash", "# lines in each list\nfor file in *.txt; do\n"
             "  printf '%s %s\\n' \"$file\" \"$(wc -l < \"$file\")\"\ndone"),
    ("json", '{\n  "place": "Oslo",\n  "count": 12,\n  "tags": ["harbour", "north"],\n  "open": true\n}'),
    ("sql", "SELECT place, SUM(count) AS total\n"
            "FROM visits\nWHERE day >= '2026-01-01'\nGROUP BY place\nORDER BY total DESC;"),
    ("html", "<ul class=\"places\">\n  <li>Oslo &amp; Bergen</li>\n  <li>Kyoto</li>\n</ul>"),
    ("go", "func total(rows []Row) (sum int) {\n"
           "\tfor _, row := range rows {\n\t\tsum += row.Count\n\t}\n\treturn sum\n}"),
    ("rust", "fn total(rows: &[(String, u32)]) -> u32 {\n    rows.iter().map(|(_, count)| count).sum()\n}"),
    ("c", "int total(const int *counts, int n) {\n"
          "    int sum = 0;\n    for (int i = 0; i < n; i++)\n        sum += counts[i];\n"
          "    return sum;\n}"),
    ("yaml", "places:\n  - name: Oslo\n    count: 12\n  - name: Kyoto\n    count: 31"),
    ("diff", "--- a/list.txt\n+++ b/list.txt\n@@ -1,2 +1,2 @@\n-Oslo 11\n+Oslo 12\n Kyoto 31"),
    ("", "harbour/\n|-- log.txt\n`-- reports/\n    `-- today.json"),
)


def _markdown_title(picks):
    return "# %s %s\n\n%s" % (picks.pick(_MARKDOWN_TITLES), picks.pick(_MARKDOWN_TOPICS), _markdown_paragraph(picks))


def _markdown_section(picks):
    return "%s %s\n\n%s" % (picks.pick(("##", "##", "###")), picks.pick(_MARKDOWN_TOPICS).capitalize(),
                            _markdown_paragraph(picks))


def _markdown_paragraph(picks):
    start = picks.below(len(_MARKDOWN_SENTENCES))
    return " ".join((_MARKDOWN_SENTENCES * 2)[start:start + 2 + picks.below(2)])


def _markdown_points(picks, count):
    start = picks.below(len(_MARKDOWN_POINTS))
    return (_MARKDOWN_POINTS * 2)[start:start + count]


def _markdown_list(picks):
    points = _markdown_points(picks, 4)
    marks = picks.pick(_MARKDOWN_MARKS)
    return "\n".join(mark + point for mark, point in zip(marks, points))


def _markdown_table(picks):
    rows = [picks.pick(_MARKDOWN_HEADS)]
    start = picks.below(len(_MARKDOWN_CELLS))
    rows += (_MARKDOWN_CELLS * 2)[start:start + 2 + picks.below(3)]
    lines = ["| %s |" % " | ".join(row) for row in rows]
    return "\n".join(lines[:1] + [picks.pick(_MARKDOWN_RULES)] + lines[1:])


def _markdown_code(picks):
    language, code = picks.pick(_MARKDOWN_CODE)
    return "```%s\n%s\n```" % (language, code)


def _markdown_quote(picks):
    return "> " + _markdown_paragraph(picks).replace(". ", ".\n> ")


def _markdown_line(picks):
    return "---"


_MARKDOWN_KINDS = (_markdown_code, _markdown_section, _markdown_list, _markdown_table, _markdown_paragraph,
                   _markdown_quote, _markdown_code, _markdown_list, _markdown_section, _markdown_line)


def markdown_blocks(count):
    """`count` blocks; the first MARKDOWN_STARTS are titles."""
    made = []
    for number in range(count):
        picks = TextPicks(b"markdown %d" % number)
        kind = _markdown_title if number < MARKDOWN_STARTS else _MARKDOWN_KINDS[number % len(_MARKDOWN_KINDS)]
        made.append(kind(picks) + "\n\n")
    return made
