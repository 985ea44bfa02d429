"""Conversations: chains with a name, and calls to fill, read and thin them out.

A conversation's items are the nodes under its head: turns of responses, items that were put in, and
marks for items that were taken out. Nothing is copied; a mark leaves earlier responses as they were.
"""
from hashlib import blake2b

from api_common import (ApiError, Host, TakesLong, build_page, check_array, check_fields,
                        check_metadata, check_object, check_unknown, missing_parameter, parse_body, parse_page_query,
                        shown)
from responses_items import has_call, item_tokens, read_input
from responses_request import check_includes, conversation_locked, conversation_not_found
from state.contract import Conversation, Node, is_long_walk, iter_context

MAX_NEW_ITEMS = 20                  # in one call (S)

_CONVERSATION_CHECKS = {"metadata": check_metadata, "items": check_array(check_object, 0, MAX_NEW_ITEMS)}
_NEW_ITEMS_CHECKS = {"items": check_array(check_object, 1, MAX_NEW_ITEMS)}


def _conversation_object(conversation):
    return {"id": conversation.id, "object": "conversation", "created_at": int(conversation.created_s),
            "metadata": conversation.metadata}


def _all_items(conversation, newest_first, breathe):
    if conversation.head is None:
        return iter(())
    return iter_context(conversation.head, newest_first, True, breathe)


class ConversationsApiMixin(Host):
    """/v1/conversations and what is below it."""

    def conversations_create(self):
        body = self._conversations_body(_CONVERSATION_CHECKS, optional=True)
        tail = self.ids.tail()
        conversation = Conversation("conv_" + tail, float(self.ids.created()), body.get("metadata") or {})
        if body.get("items"):
            conversation.head = self._conversations_items_node(body["items"], None)
        self.store.create_conversation(conversation)
        self.send_json(200, _conversation_object(conversation))

    def conversations_retrieve(self, id):
        self.send_json(200, _conversation_object(self._conversations_known(id)))

    def conversations_update(self, id):
        body = self._conversations_body({"metadata": check_metadata})
        if "metadata" not in body:
            raise missing_parameter("metadata")
        conversation = self.store.describe_conversation(id, body["metadata"] or {})
        if conversation is None:
            raise conversation_not_found(id)
        self.send_json(200, _conversation_object(conversation))

    def conversations_delete(self, id):
        if not self.store.delete_conversation(id):
            raise conversation_not_found(id)
        self.send_json(200, {"id": id, "object": "conversation.deleted", "deleted": True})

    def conversations_items_list(self, id):
        limit, order, after = parse_page_query(self.query, "desc")
        check_includes(self.query)
        conversation = self._conversations_known(id)
        self._conversations_walk(conversation, after is not None or order == "asc")
        page = build_page(_all_items(conversation, order == "desc", self.breathe), limit, after)
        includes = self.query.get("include")
        if includes:
            page["data"] = [self.backend.included(item, includes) for item in page["data"]]
        self.send_json(200, page)

    def conversations_items_create(self, id):
        check_includes(self.query)
        body = self._conversations_body(_NEW_ITEMS_CHECKS)
        if body.get("items") is None:
            raise missing_parameter("items")
        made = []

        def add(conversation):
            node = self._conversations_items_node(body["items"], conversation.head)
            made.extend(node.input_items())
            return node
        self._conversations_change(id, add)
        self.send_json(200, {"object": "list", "data": made, "first_id": made[0]["id"], "last_id": made[-1]["id"],
                             "has_more": False})

    def conversations_items_retrieve(self, id, item_id):
        check_includes(self.query)
        item = self._conversations_item(self._conversations_known(id), item_id)
        self.send_json(200, self.backend.included(item, self.query.get("include") or ()))

    def conversations_items_delete(self, id, item_id):
        def drop(conversation):
            head = conversation.head
            item = self._conversations_item(conversation, item_id)
            call_id, open_calls = item.get("call_id"), head.open_calls
            if call_id.__class__ is not str:
                call_id = None
            elif item["type"].endswith("_call"):
                open_calls = open_calls.difference((call_id,))
            if call_id is not None and not item["type"].endswith("_call") and has_call(head, call_id, self.breathe):
                open_calls = open_calls.union((call_id,))
            digest = blake2b(head.prefix_hash + b"\0-" + item_id.encode("utf-8", "surrogatepass"), digest_size=16)
            return Node("resp_" + self.ids.tail(), head, self.clock.time(), b"[]", (0, 2), b"[]",
                        max(0, head.total_tokens - item_tokens(item, self.tokenizer)), digest.digest(),
                        open_calls, (), head.calls, hidden=True, drops=(item_id,))
        # the service answers with the conversation, not with a deletion object
        self.send_json(200, _conversation_object(self._conversations_change(id, drop)))

    # ---- inside -------------------------------------------------------------------------------

    def _conversations_body(self, checks, optional=False):
        body = parse_body(self.body_bytes, self.breathe) if self.body_bytes or not optional else {}
        unknown = check_fields(body, checks)
        if self.settings.strict:
            check_unknown(unknown)
        return body

    def _conversations_known(self, id):
        conversation = self.store.conversation(id)
        if conversation is None:
            raise conversation_not_found(id)
        return conversation

    def _conversations_walk(self, conversation, whole):
        """Not on the loop, where it takes long."""
        if self.breathe is None and conversation.head is not None and is_long_walk(conversation.head, whole):
            raise TakesLong()

    def _conversations_item(self, conversation, item_id):
        self._conversations_walk(conversation, True)
        for item in _all_items(conversation, True, self.breathe):
            if item["id"] == item_id:
                return item
        raise ApiError(404, "Item with id '%s' not found in this conversation." % shown(item_id))

    def _conversations_items_node(self, items, head):
        """A hidden node of items that a client puts into a conversation."""
        tail = self.ids.tail()
        read = read_input(items, head, self.store, self.tokenizer, self.breathe, name="items")
        before = head.total_tokens if head is not None else 0
        return Node("resp_" + tail, head, self.clock.time(), b"[]", (0, 2), read.stored(tail), before + read.tokens,
                    read.prefix_hash, read.open_calls, read.foreign_ids, read.calls, hidden=True)

    def _conversations_change(self, id, make_node):
        """Move a conversation's head to make_node(conversation), if nobody generates in it."""
        owner = self.ids.tail()
        conversation = self.store.claim_conversation(id, owner)
        if conversation is None:
            raise conversation_not_found(id)
        if conversation.owner != owner:
            raise conversation_locked(id)
        try:
            self.store.put(make_node(conversation), id)
        finally:
            self.store.release_conversation(id, owner)
        return conversation
