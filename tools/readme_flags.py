"""Writes the README's table of flags from the parser, so that the two cannot differ.

    python tools/readme_flags.py            prints the table
    python tools/readme_flags.py --write    puts it into README.md, between its markers
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BEGIN, END = "<!-- flags: made by tools/readme_flags.py -->", "<!-- end of flags -->"


def flags_table(parser):
    """The Markdown table of an argparse parser's options, group by group."""
    lines = ["| flag | meaning |", "| --- | --- |"]
    for group in parser._action_groups:
        options = [action for action in group._group_actions if action.option_strings]
        if not options:
            continue
        title = "general" if group.title in ("options", "optional arguments") else group.title  # 3.9's words
        lines.append("| **%s** | |" % title)
        for action in options:
            flag = action.option_strings[-1] + (" " + action.metavar if action.metavar else "")
            lines.append("| `%s` | %s |" % (flag, action.help.replace("%%", "%").replace("|", "\\|")))
    return "\n".join(lines)


def with_table(text, table):
    """README text with the table between its markers replaced."""
    start = text.index(BEGIN) + len(BEGIN)
    return text[:start] + "\n" + table + "\n" + text[text.index(END):]


def main(argv):
    sys.path.insert(0, ROOT)
    from settings import build_settings_parser
    table = flags_table(build_settings_parser())
    if argv[1:] != ["--write"]:
        print(table)
        return 0
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as readme:
        text = readme.read()
    with open(path, "w", encoding="utf-8", newline="\n") as readme:
        readme.write(with_table(text, table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
