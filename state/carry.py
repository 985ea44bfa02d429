"""`server.py store info|export|import`: a store's file looked at, and carried as lines of JSON.

One line says what it is, then one per node, parents first, then one per conversation. What comes in
under an id that is there already is left out.
"""
import json
import os
import sys
from base64 import b64decode, b64encode

from api_common import ApiError
from state.contract import Conversation, Node
from state.sqlite import STORE_VERSION, SqliteStore, StoreUnusable

_CARRY_FORMAT = 1
_NO_BOUND = 1 << 62
_CARRY_BATCH = 200                  # lines between two commits
_CARRY_USAGE = """usage: server.py store info PATH
       server.py store export PATH > FILE
       server.py store import PATH < FILE
"""


def export_lines(store):
    """A store's whole state as lines of JSON, without their ends."""
    yield json.dumps({"mockturtle_state": _CARRY_FORMAT, "store_version": STORE_VERSION})
    for node, state in store.all_nodes():
        yield json.dumps({"node": {
            "id": node.id, "parent": node.parent.id if node.parent is not None else None, "state": state,
            "created": node.created_s, "body": node.body.decode("ascii"), "output_at": node.output_at,
            "input": node.input.decode("ascii"), "tokens": node.total_tokens, "hash": node.prefix_hash.hex(),
            "open_calls": sorted(node.open_calls), "calls": node.calls, "foreign_ids": node.foreign_ids,
            "drops": node.drops, "background": node.background, "about": node.about,
            "replay": b64encode(node.replay).decode("ascii") if node.replay is not None else None}})
    for conversation in store.all_conversations():
        yield json.dumps({"conversation": {
            "id": conversation.id, "created": conversation.created_s, "metadata": conversation.metadata,
            "head": conversation.head.id if conversation.head is not None else None}})


def import_lines(store, lines):
    """Take in export_lines(). Returns (nodes, conversations, left out). Raises StoreUnusable naming the line."""
    nodes = conversations = left_out = number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if number == 1:
                if value["mockturtle_state"] != _CARRY_FORMAT:
                    raise StoreUnusable("format %s is not known here" % value["mockturtle_state"])
            elif "node" in value:
                taken = store.take_node(_carried_node(value["node"]), value["node"]["parent"], value["node"]["state"])
                nodes += taken
                left_out += not taken
            else:
                taken = _take_conversation(store, value["conversation"])
                conversations += taken
                left_out += not taken
        except StoreUnusable as exc:
            raise StoreUnusable("line %d: %s" % (number, exc))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise StoreUnusable("line %d is no line of an export (%s: %s)" % (number, exc.__class__.__name__, exc))
        if not number % _CARRY_BATCH:
            store.flush()
    if not number:
        raise StoreUnusable("there is nothing to import")
    store.flush()
    return nodes, conversations, left_out


def _carried_node(value):
    for name in ("body", "input"):
        json.loads(value[name])             # what is no JSON would be a 500 for whoever asks for it
    about, output_at = value["about"], tuple(map(int, value["output_at"]))
    if about is not None and not (about.__class__ is dict and about.get("model").__class__ is str
                                  and about.get("metadata").__class__ is dict):
        raise ValueError("'about' must be null, or have a model and metadata")
    if value["id"].__class__ is not str or not 0 < float(value["created"]) < 1e11 or int(value["tokens"]) < 0 \
            or not 0 <= output_at[0] <= output_at[1] <= len(value["body"]):
        raise ValueError("a value is outside its range")
    replay = value["replay"]
    return Node(str(value["id"]), None, float(value["created"]), value["body"].encode("ascii"),
                tuple(map(int, value["output_at"])), value["input"].encode("ascii"), int(value["tokens"]),
                bytes.fromhex(value["hash"]), frozenset(value["open_calls"]), tuple(value["foreign_ids"]),
                int(value["calls"]), value["state"] == "hidden", tuple(value["drops"]), bool(value["background"]),
                b64decode(replay) if replay is not None else None, value["about"])


def _take_conversation(store, value):
    conversation = Conversation(str(value["id"]), float(value["created"]), dict(value["metadata"]))
    return store.take_conversation(conversation, value["head"])


def store_command(argv, out=None, lines=None):
    """The command behind `server.py store`. Returns the process's exit code."""
    out, lines = out or sys.stdout, lines or sys.stdin
    if len(argv) != 2 or argv[0] not in ("info", "export", "import"):
        sys.stderr.write(_CARRY_USAGE)
        return 2
    word, path = argv
    if path.startswith("sqlite:"):
        path = path[len("sqlite:"):]        # as --store has it
    if word != "import" and not os.path.exists(path):
        sys.stderr.write("mockturtle: error: there is no file %s\n" % path)
        return 2
    try:
        store = SqliteStore(path, _NO_BOUND, _NO_BOUND, 1e12)
        try:
            if word == "info":
                for name, count in store.stats().items():
                    out.write("%-14s %d\n" % (name, count))
            elif word == "export":
                with store.snapshot():
                    for line in export_lines(store):
                        out.write(line + "\n")
            else:
                sys.stderr.write("took in %d nodes and %d conversations; %d were there already\n"
                                 % import_lines(store, lines))
        finally:
            store.close()
    except (ApiError, ValueError, OSError) as exc:
        sys.stderr.write("mockturtle: error: %s\n" % exc)
        return 2
    return 0
