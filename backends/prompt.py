"""What the model reads, part by part, as a chat template lays it out: for backends that count or compare its tokens.

In: an API's messages or items, when a backend asks for them (History.prompt()). Out: parts, whose tokens together
are the prompt's. A part with a role costs MESSAGE_TOKENS beside its content: an opening before it and a closing
behind it; the answer's opening, ANSWER_TOKENS, ends the prompt, so that an answer put back as a message continues it.
"""
from collections import namedtuple
from hashlib import blake2b

from api_common import MEDIA_TOKENS, dump_json


class Opaque(namedtuple("Opaque", "key tokens")):
    """A piece of content that is no text to be cut: so many tokens, all called `key` (str), equal for equal content."""
    __slots__ = ()


class Prompt:
    """A request's prompt. A part is (role, content).

    role: str, or None for bare text without overhead (tool definitions, a legacy prompt). content: str, or a list of
    str and Opaque. head: parts before the whole context (tools, instructions). parts: those of this turn, or of all.
    parent: None, or what names the turn that this one follows, as a tuple (id, tokens of the context that it left);
    then before() gives the parts of the context so far, between head and parts; it may raise TakesLong.
    turn: None, or (id, tokens of the context without head and answer): what a turn after this one has as parent once
    the answer's tokens and MESSAGE_TOKENS are added. opens: whether the prompt ends with the opening of an answer.
    """

    __slots__ = ("parts", "head", "parent", "before", "turn", "opens")

    def __init__(self, parts, head=(), parent=None, before=None, turn=None, opens=True):
        self.parts = parts
        self.head = head
        self.parent = parent
        self.before = before
        self.turn = turn
        self.opens = opens


def call_content(name, arguments):
    """A tool call as content: its name is one token, as when it was generated."""
    return [Opaque(name, 1), arguments]


def content_pieces(content):
    """A message's content (str or list of parts) as a Prompt's: texts joined, all else in its place as Opaque."""
    if content.__class__ is str:
        return content
    pieces = []
    for part in content or ():
        text = part if part.__class__ is str else part.get("text", part.get("refusal"))
        if text.__class__ is not str:
            pieces.append(Opaque(media_key(part), MEDIA_TOKENS))
        elif pieces and pieces[-1].__class__ is str:
            pieces[-1] += text
        else:
            pieces.append(text)
    return pieces[0] if len(pieces) == 1 and pieces[0].__class__ is str else pieces


def media_key(value):
    """A name for an image, a file or the like, equal for equal content."""
    digest = blake2b(digest_size=12)
    _feed_media(digest, value)
    return "\0" + digest.hexdigest()


def _feed_media(digest, value):
    """Long texts as they are: dumping 2 MB of base64 as JSON would hold the GIL for some ms, hashing lets it go."""
    if value.__class__ is str:
        digest.update(value.encode("utf-8", "surrogatepass"))
    elif value.__class__ is dict:
        for key, inner in value.items():
            if key != "detail" and inner is not None:       # which the stored form adds
                digest.update(b"\0%s\0" % key.encode("utf-8", "surrogatepass"))
                _feed_media(digest, inner)
    else:
        digest.update(dump_json(value))
