"""Stored chat completions: what was made with `store: true`, listed, read, described and deleted.

A stored chat completion is a node without a chain: its object, its messages, and what lists are
filtered by. Source: api-reference 5.
"""
import json

from api_common import (ApiError, Host, TakesLong, build_page, check_fields, check_metadata, check_unknown, content_text,
                        dump_json, missing_parameter, parse_body, parse_page_query, shown)
from state.contract import Node

_LONG_CHATS_BYTES = 200000          # to copy or parse more takes some ms


def stored_chat_node(id, wall_s, result, messages, model, metadata):
    """The node of a finished chat completion. result: its object, messages: its input, both as JSON bytes."""
    about = {"model": model, "metadata": metadata}
    return Node(id, None, wall_s, _with_metadata(result, len(result) - 1, metadata), (0, len(result) - 1),
                messages, 0, b"", about=about)


def _with_metadata(body, end, metadata):
    """A completion's object, which without its last brace ends at `end`, with this metadata."""
    return b'%s,"metadata":%s}' % (body[:end], dump_json(metadata))


def _stored_messages(node):
    """The input messages as the service lists them: text in `content`, parts beside it."""
    listed = []
    for number, message in enumerate(json.loads(node.input)):
        content = message.get("content")
        parts = content if content.__class__ is list else None
        listed.append(dict(message, id="%s-%d" % (node.id, number),
                           content=content if parts is None else content_text(parts),
                           content_parts=parts, refusal=message.get("refusal")))
    return listed


class StoredChatsApiMixin(Host):
    """GET /v1/chat/completions, and all calls about one that was stored."""

    def chats_list(self):
        limit, order, after = parse_page_query(self.query, "asc")
        wanted = {name[9:-1]: values[-1] for name, values in self.query.items()
                  if name.startswith("metadata[") and name.endswith("]")}
        model = (self.query.get("model") or [None])[-1]
        nodes = self.store.chats()
        found = ({"id": node.id, "node": node} for node in (nodes if order == "asc" else reversed(nodes))
                 if (model is None or node.about["model"] == model)
                 and all(node.about["metadata"].get(key) == value for key, value in wanted.items()))
        page = build_page(found, limit, after)
        bodies = [each["node"].body for each in page.pop("data")]
        self._chats_check_size(sum(map(len, bodies)))
        # they are JSON already: decoding and encoding them again took ten times as long
        self.send_json(200, b'%s,"data":[%s]}' % (dump_json(page)[:-1], b",".join(bodies)))

    def chats_retrieve(self, id):
        self.send_json(200, self._chats_node(id).body)

    def chats_update(self, id):
        body = parse_body(self.body_bytes, self.breathe)
        unknown = check_fields(body, {"metadata": check_metadata})
        if self.settings.strict:
            check_unknown(unknown)
        if "metadata" not in body:
            raise missing_parameter("metadata")
        metadata = body["metadata"] or {}
        old = self._chats_node(id)
        node = Node(id, None, old.created_s, _with_metadata(old.body, old.output_at[1], metadata), old.output_at,
                    old.input, 0, b"", about=dict(old.about, metadata=metadata))
        if not self.store.replace(node):
            raise _unknown_chat(id)
        self.send_json(200, node.body)

    def chats_delete(self, id):
        self._chats_node(id)
        if not self.store.delete(id):
            raise _unknown_chat(id)
        self.send_json(200, {"object": "chat.completion.deleted", "id": id, "deleted": True})

    def chats_messages(self, id):
        limit, order, after = parse_page_query(self.query, "asc")
        node = self._chats_node(id)
        self._chats_check_size(len(node.input))
        messages = _stored_messages(node)
        self.send_json(200, build_page(messages if order == "asc" else messages[::-1], limit, after))

    def _chats_check_size(self, size):
        """Not on the loop, where it takes long."""
        if self.breathe is None and size > _LONG_CHATS_BYTES:
            raise TakesLong()

    def _chats_node(self, id):
        node = self.store.get(id) if id.startswith("chatcmpl-") else None
        if node is None:
            raise _unknown_chat(id)
        return node


def _unknown_chat(id):
    return ApiError(404, "Chat completion with id '%s' not found." % shown(id))
