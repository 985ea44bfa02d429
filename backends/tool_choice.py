"""Which tool a simulated model calls: pure functions from words to a choice.

The rule for `auto`: a tool scores 2 for each word of the last user message that its name has too,
and 1 for each that only its description has, stop words left out; the highest score above 0 is
called, the first of equals. After a tool's output, and for a message that points at none: text.
A name that stands in the message as it is, with its underscores, wins. Bare verbs (create, search, send) do not count, or "Create a poem" would find create_event; only a
name that has no other word is found by its verb.
"""
import re

from backends.contract import BUILTIN_FAMILIES, BuiltinName

_TOOL_WORD = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[a-z]+(?![^\W\d_A-Z])|[^\W\d_]+|[0-9]+")
_TOOL_SUFFIX = re.compile(r"['\u2019]\w+")       # it's, don't, what's
_TOOL_SINGULAR = frozenset(("news", "lens", "bus", "gas", "status", "address", "business", "process", "access"))

# Words that say nothing about what a tool is for: English glue, and the verbs and nouns that
# nearly every tool's description has.
_TOOL_STOP_WORDS = frozenset((
    "a about all also am an and any are as at be been but by can could did do does for from get gets "
    "give given gives had has have he help her here him his how i if in into is it its just let like "
    "make me more my need no not now of on one or our out over please say set she should show so some "
    "such tell than that the their them then there these they this those to up us use used user users "
    "uses using want was we were what when where which who why will with would you your api based call "
    "calls current data fetch function functions information input name names new output provide "
    "provided provides response result results retrieve return returns run specified text tool tools "
    "value values via").split())

_TOOL_VERBS = frozenset((
    "add check close create delete do edit execute find generate list load look make open perform query read "
    "remove save search send set start stop submit update write").split())


def tool_words(text):
    """The words of a message, a name or a description that count: lower case, without plural s."""
    words = set()
    for word in _TOOL_WORD.findall(_TOOL_SUFFIX.sub("", text)):
        word = word.lower()
        if word not in _TOOL_STOP_WORDS:
            word = _tool_singular(word)
            if word not in _TOOL_STOP_WORDS:
                words.add(word)
    return words


def _tool_singular(word):
    """cities -> city, boxes -> box, flights -> flight; news stays."""
    if len(word) <= 3 or not word.endswith("s") or word.endswith("ss") or word in _TOOL_SINGULAR:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    return word[:-1]


def score_tool(message_words, spec):
    """2 for each word shared with the tool's name, 1 for each shared with its description alone."""
    named = tool_words(spec.name)
    named = named - _TOOL_VERBS or named
    described = tool_words(spec.description or "") - named - _TOOL_VERBS
    return 2 * len(message_words & named) + len(message_words & described)


def callable_tools(request):
    """The function and custom tools that the request's tool_choice allows, in order."""
    names = request.tool_choice.names
    return [spec for spec in request.tools
            if spec.name is not None and (names is None or spec.name in names)]


def choose_tool(request, chance):
    """The ToolSpec to call, or None for text.

    chance: None for the rule above, else how likely `auto` calls a tool, with a draw of 0..1 in
    `chance[1]`. `required` always calls; with several tools they take turns, so that an agent's
    output tool is reached.
    """
    mode = request.tool_choice.mode
    if mode == "none":
        return None
    tools = callable_tools(request)
    if not tools:
        return None
    history = request.history
    if mode == "required":
        return tools[history.calls % len(tools)]
    if history.after_output:
        return None
    if chance is not None:
        rate, draw = chance
        return tools[history.calls % len(tools)] if draw < rate else None
    text = history.last_user_text
    words = tool_words(text)
    best, best_score = None, 0
    for spec in tools:
        score = score_tool(words, spec)
        if "_" in spec.name and spec.name in text:
            score += 100                # called by its name
        if score > best_score:
            best, best_score = spec, score
    return best


def choose_builtins(request, rate, chance):
    """Built-in tools to call when choose_tool() has found none: [(ToolSpec, BuiltinName or None)] in order.

    `required` and a choice that names them call one, drawn among those allowed; `auto` each with a
    chance of `rate`, but none after a tool's output. chance(): the next draw, 0 to 1. Chat has a place
    for what a web search cites, and for no other tool's items.
    """
    mode, names = request.tool_choice
    if mode == "none" or mode == "auto" and (not rate or request.history.after_output):
        return []
    found = []
    for spec in request.tools:
        family = BUILTIN_FAMILIES.get(spec.kind)
        if family is None or family != "web_search" and request.endpoint != "responses":
            continue
        if names is None:
            found.append((spec, None))
            continue
        for name in names:
            if name.__class__ is BuiltinName and name.family == family \
                    and name.server_label in (None, spec.parameters.get("server_label")):
                found.append((spec, name))
                break
    if mode == "required":
        return [found[int(chance() * len(found))]] if found else []
    return [entry for entry in found if chance() < rate]
