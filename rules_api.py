"""The rules of a script while the server runs: listed, added, cleared, read again, under /_mockturtle/rules.

They are guarded like all control paths (server.py). A change takes effect with the next request that is read.
"""
from api_common import ApiError, Host, TakesLong, parse_query_boolean, shown
from backends.script_check import ScriptMistakes

MANY_RULES = 100                    # to list more takes some ms


class RulesApiMixin(Host):
    """/_mockturtle/rules and /_mockturtle/rules/reload."""

    def rules_list(self):
        """GET: all rules in the order in which they are asked, and how often each answered."""
        book = self._rules_book()
        if self.breathe is None and len(book.rules) > MANY_RULES:
            raise TakesLong()
        self.send_json(200, book.describe())

    def rules_add(self):
        """POST a rule, {"rules": [...]} or an array, comments allowed. ?first=true puts it before all others."""
        book = self._rules_book()
        first = parse_query_boolean(self.query, "first")
        if self.breathe is None:
            raise TakesLong()               # reading is some 10 us a value, and a regex may take long
        try:
            names = book.add_text(self.body_bytes.decode("utf-8"), first)
        except UnicodeDecodeError:
            raise ApiError(400, "The request body is not valid UTF-8.")
        except ScriptMistakes as exc:
            raise _rules_refused(exc)
        self.send_json(200, {"object": "rules.added", "names": names, "rules": len(book.rules)})

    def rules_clear(self):
        """DELETE: the rules that were added go, or with ?name= those of one name; those of files stay."""
        book, name = self._rules_book(), (self.query.get("name") or [None])[-1]
        removed = book.clear(name)
        if name is not None and not removed:
            raise ApiError(404, "No rule with the name '%s' was added." % shown(name), param="name")
        self.send_json(200, {"object": "rules.deleted", "deleted": removed, "rules": len(book.rules)})

    def rules_reload(self):
        """POST: read all script files again."""
        book = self._rules_book()
        if self.breathe is None:
            raise TakesLong()
        try:
            count = book.reload()
        except ScriptMistakes as exc:
            raise _rules_refused(exc)
        self.send_json(200, {"object": "rules.reloaded", "files": len(book.files), "rules": count})

    def _rules_book(self):
        book = self.backend.rule_book
        if book is None:
            raise ApiError(404, "This server was given a backend of its own, which takes no rules.")
        return book


def _rules_refused(exc):
    """The 400 for rules with mistakes: all of them in the message, the first one's key as its param."""
    return ApiError(400, "The rules are not right, and nothing has changed: %s" % "; ".join(map(str, exc.mistakes)),
                    code="invalid_script", param=exc.mistakes[0].key or None)
