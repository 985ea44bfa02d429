"""The official openai Python SDK as a client, with its strict response validation on.

    python .ci/clients_openai.py [BASE_URL] [--server PATH] [--python PYTHON] [--only WORD]

Starts its own servers on free ports of the loopback interface (the main one is BASE_URL when given) and ends them.
Prints one line per check and, last, "N passed, M failed"; the exit status is 1 when any failed. Run it with the Python
of an environment that holds `openai` (.ci/requirements-openai.txt); --python runs the server.
"""

import argparse
import asyncio
import socket
import sys
import time

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from reporting import CHECKS, Report, check, need, same
from servers import WAIT_S, Server

MODEL = "mock-model"
QUESTION = "What does the sea say to the ship?"
ASK = [{"role": "user", "content": QUESTION}]
KEY = "sk-right"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

# What a short answer in one text part is, event by event; deltas in a row count once.
EVENT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def refused(kind, call, status=None, code=None, param=None):
    """Fail unless call() raises exactly this class of the SDK, with these values; returns the exception."""
    try:
        call()
    except openai.OpenAIError as error:
        same(type(error), kind, "the exception (%s)" % error)
        if status is not None:
            same(error.status_code, status, "status")
            same(error.code, code, "code")
            same(error.param, param, "param")
            need(error.body["message"] and error.body["type"], "the envelope has no message or no type")
            need(error.request_id, "the error has no request id")
        return error
    raise AssertionError("no exception, where %s was due" % kind.__name__)


# ---- servers ----------------------------------------------------------------------------------


class Room:
    """What a check may use: clients, and the servers behind them, which start when they are asked for."""

    def __init__(self, options):
        self.options = options
        self.servers = []
        self.base_url = options.base_url
        self.client = None  # of the main server
        self.slow_url = None
        self.locked_url = None
        self.narrow_url = None
        self.left_id = None  # of a response whose client went away, see the last check
        self.left_at = None

    def open(self):
        """Start the main server unless it runs already."""
        if self.base_url is None:
            self.base_url = self._start("--ttft-ms", "5", "--itl-ms", "1", "--output-tokens", "24")
        self.client = self.connect(self.base_url)

    def _start(self, *flags):
        server = Server(self.options, *flags)
        self.servers.append(server)
        return server.url

    def connect(self, url, kind=OpenAI, key=KEY, timeout=WAIT_S, strict=True):
        """A client that does not try again."""
        return kind(
            base_url=url + "/v1", api_key=key, timeout=timeout, max_retries=0, _strict_response_validation=strict
        )

    def slow(self, **more):
        """A client of a server with a first token after 0.8 s and a heartbeat every 0.1 s."""
        if self.slow_url is None:
            self.slow_url = self._start(
                "--ttft-ms", "800", "--itl-ms", "1", "--output-tokens", "8", "--heartbeat-s", "0.1"
            )
        return self.connect(self.slow_url, **more)

    def locked(self, key):
        """A client of a server that accepts KEY only."""
        if self.locked_url is None:
            self.locked_url = self._start("--api-key", KEY, "--ttft-ms", "0", "--itl-ms", "0")
        return self.connect(self.locked_url, key=key)

    def narrow(self):
        """A client of a server with a context of 100 tokens that generates one background response at a time."""
        if self.narrow_url is None:
            self.narrow_url = self._start(
                "--max-model-len", "100", "--max-background", "1", "--ttft-ms", "300", "--itl-ms", "1"
            )
        return self.connect(self.narrow_url)


# ---- chat -------------------------------------------------------------------------------------


def chat(room, **more):
    """A chat completion that ends at 12 tokens unless told otherwise."""
    body = {"model": MODEL, "messages": ASK, "max_completion_tokens": 12, "extra_body": {"ignore_eos": True}}
    body.update(more)
    return room.client.chat.completions.create(**body)


def chat_texts(chunks):
    """{choice index: its text}, after checking what every chunk must have."""
    texts, ids = {}, set()
    for chunk in chunks:
        same(chunk.object, "chat.completion.chunk", "object")
        ids.add(chunk.id)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    same(len(ids), 1, "number of ids in one stream")
    return texts


@check("chat plain: text, finish reason, usage")
def chat_plain(room):
    answer = chat(room, max_completion_tokens=None)
    same(answer.object, "chat.completion", "object")
    same(answer.model, MODEL, "model")
    need(answer.id.startswith("chatcmpl-"), "id is " + answer.id)
    need(abs(answer.created - time.time()) < 60, "created is not now")
    same([choice.index for choice in answer.choices], [0], "choice indexes")
    choice = answer.choices[0]
    same((choice.finish_reason, choice.message.role, choice.message.refusal, choice.message.tool_calls),
         ("stop", "assistant", None, None), "the choice")
    need(choice.message.content.strip(), "no content")
    need(answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0, "usage is empty")
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens, "total_tokens")
    same(answer.usage.prompt_tokens_details.cached_tokens, 0, "cached_tokens")
    same(answer.usage.completion_tokens_details.reasoning_tokens, 0, "reasoning_tokens")


@check("chat plain: a limit ends it with 'length' and exactly that many tokens")
def chat_limit(room):
    for key in ("max_completion_tokens", "max_tokens"):
        answer = chat(room, **{"max_completion_tokens": openai.omit, key: 5})
        same((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 5), key)


@check("chat plain: system, developer, assistant messages and text parts all count as prompt")
def chat_messages(room):
    counts = []
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": QUESTION, "name": "ann"},
    ]
    for start in (4, 2, 1, 0):
        counts.append(chat(room, messages=messages[start:]).usage.prompt_tokens)
    need(counts == sorted(set(counts)), "prompt tokens do not grow with the messages: %s" % counts)


@check("chat streamed: one id, role first, then text, then one finish reason; no usage unless asked")
def chat_streamed(room):
    chunks = list(chat(room, stream=True))
    need(chat_texts(chunks)[0].strip(), "no text")
    same(chunks[0].choices[0].delta.role, "assistant", "the first chunk's role")
    same([chunk.choices[0].delta.role for chunk in chunks[1:]], [None] * (len(chunks) - 1), "later roles")
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    same(reasons, [None] * (len(chunks) - 1) + ["length"], "finish reasons")
    same([chunk.usage for chunk in chunks], [None] * len(chunks), "usage")
    same(sum(1 for chunk in chunks if chunk.choices[0].delta.content), 12, "chunks with text")


@check("chat streamed: include_usage adds one last chunk without choices")
def chat_streamed_usage(room):
    chunks = list(chat(room, stream=True, stream_options={"include_usage": True}))
    same([index for index, chunk in enumerate(chunks) if not chunk.choices], [len(chunks) - 1], "without choices")
    same([index for index, chunk in enumerate(chunks) if chunk.usage], [len(chunks) - 1], "with usage")
    usage = chunks[-1].usage
    plain = chat(room).usage
    same(usage, plain, "streamed usage, beside the plain answer's")
    same(usage.completion_tokens, 12, "completion_tokens")


@check("chat: the same seed gives the same text, plain and streamed")
def chat_seed(room):
    plain = chat(room, seed=7)
    streamed = chat_texts(chat(room, seed=7, stream=True))[0]
    same(streamed, plain.choices[0].message.content, "the streamed text")
    need(chat(room, seed=8).choices[0].message.content != streamed, "another seed gives the same text")


@check("chat n=2: two choices, plain and streamed alike")
def chat_two(room):
    plain = chat(room, n=2, seed=3)
    same([choice.index for choice in plain.choices], [0, 1], "choice indexes")
    same([choice.finish_reason for choice in plain.choices], ["length"] * 2, "finish reasons")
    same(plain.usage.completion_tokens, 24, "completion_tokens")
    texts = [choice.message.content for choice in plain.choices]
    need(texts[0] != texts[1], "both choices say the same")
    chunks = list(chat(room, n=2, seed=3, stream=True, stream_options={"include_usage": True}))
    same(chat_texts(chunks), dict(enumerate(texts)), "streamed texts")
    same(chunks[-1].usage, plain.usage, "streamed usage")
    ends = [(choice.index, choice.finish_reason) for chunk in chunks for choice in chunk.choices
            if choice.finish_reason]
    same(sorted(ends), [(0, "length"), (1, "length")], "finish reasons")


@check("chat: the stream helper's final completion equals the plain one")
def chat_helper(room):
    body = {"model": MODEL, "messages": ASK, "max_completion_tokens": None, "seed": 5}
    with room.client.chat.completions.stream(stream_options={"include_usage": True}, **body) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    plain = room.client.chat.completions.create(**body)
    same(final.choices[0].message.content, plain.choices[0].message.content, "content")
    same(final.choices[0].finish_reason, "stop", "finish reason")
    same(final.usage, plain.usage, "usage")
    done = [event for event in events if event.type == "content.done"]
    same([event.content for event in done], [plain.choices[0].message.content], "content.done")
    deltas = "".join(event.delta for event in events if event.type == "content.delta")
    same(deltas, plain.choices[0].message.content, "content.delta, joined")


# ---- responses --------------------------------------------------------------------------------


def respond(room, **more):
    """A response of at most 16 tokens unless told otherwise."""
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 16, "extra_body": {"ignore_eos": True}}
    body.update(more)
    return room.client.responses.create(**body)


def response_of(events, background=False):
    """The final response of a list of events, after checking what must be true of every stream."""
    same([event.sequence_number for event in events], list(range(len(events))), "sequence numbers")
    order = [event.type for event in events]
    order = [kind for index, kind in enumerate(order) if not index or kind != order[index - 1]]
    need(order[-1] in TERMINAL, "the last event is " + order[-1])
    queued = ["response.queued"] if background else []
    same(order[:-1], EVENT_ORDER[:1] + queued + EVENT_ORDER[1:], "the events before the last one")
    final = events[-1].response
    for event in events:
        if event.type in ("response.created", "response.queued", "response.in_progress"):
            status = "queued" if background and event.type != "response.in_progress" else "in_progress"
            same((event.response.id, event.response.status, event.response.output, event.response.usage),
                 (final.id, status, [], None), event.type)
        if hasattr(event, "item_id"):
            same((event.item_id, event.output_index, event.content_index), (final.output[0].id, 0, 0), event.type)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    done = next(event for event in events if event.type == "response.output_text.done")
    part = next(event for event in events if event.type == "response.content_part.done")
    item = next(event for event in events if event.type == "response.output_item.done")
    same(done.text, text, "output_text.done, beside the deltas")
    same(part.part.text, text, "content_part.done, beside the deltas")
    same(item.item, final.output[0], "output_item.done, beside the final object")
    same(final.output_text, text, "the final object's text, beside the deltas")
    return final


@check("responses plain: object, text, usage, defaults")
def responses_plain(room):
    answer = respond(room, max_output_tokens=None)
    same((answer.object, answer.status, answer.model), ("response", "completed", MODEL), "the head")
    same((answer.error, answer.incomplete_details, answer.previous_response_id, answer.instructions),
         (None, None, None, None), "what is not there")
    need(answer.id.startswith("resp_"), "id is " + answer.id)
    need(abs(answer.created_at - time.time()) < 60, "created_at is not now")
    same(len(answer.output), 1, "output items")
    item = answer.output[0]
    same((item.type, item.role, item.status), ("message", "assistant", "completed"), "the item")
    need(item.id.startswith("msg_"), "the item's id is " + item.id)
    same([(part.type, part.annotations) for part in item.content], [("output_text", [])], "the parts")
    need(answer.output_text.strip(), "no text")
    same(answer.output_text, item.content[0].text, "output_text")
    usage = answer.usage
    need(usage.input_tokens > 0 and usage.output_tokens > 0, "usage is empty")
    same(usage.total_tokens, usage.input_tokens + usage.output_tokens, "total_tokens")
    same((usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens), (0, 0), "details")
    same((answer.tools, answer.tool_choice, answer.parallel_tool_calls, answer.truncation, answer.temperature,
          answer.top_p, answer.metadata, answer.text.format.type),
         ([], "auto", True, "disabled", 1.0, 1.0, {}, "text"), "the defaults")


@check("responses plain: what was asked is echoed, and instructions count as input")
def responses_echo(room):
    bare = respond(room)
    answer = respond(
        room, instructions="Be brief.", temperature=0.5, top_p=0.9, metadata={"a": "b"}, truncation="auto",
        user="ann", tool_choice="none", parallel_tool_calls=False, prompt_cache_key="k",
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}],
    )
    same((answer.instructions, answer.temperature, answer.top_p, answer.metadata, answer.truncation, answer.user,
          answer.tool_choice, answer.parallel_tool_calls, answer.prompt_cache_key, answer.max_output_tokens),
         ("Be brief.", 0.5, 0.9, {"a": "b"}, "auto", "ann", "none", False, "k", 16), "the echo")
    same([(tool.type, tool.name, tool.strict) for tool in answer.tools], [("function", "f", False)], "tools")
    need(answer.usage.input_tokens > bare.usage.input_tokens, "instructions are not counted")


@check("responses plain: a limit makes it incomplete, the item too, with exactly that many tokens")
def responses_limit(room):
    answer = respond(room)
    same((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"), "the end")
    same(answer.output[0].status, "incomplete", "the item's status")
    same(answer.usage.output_tokens, 16, "output_tokens")


@check("responses streamed: event order, sequence numbers, one text in deltas, done events and final object")
def responses_streamed(room):
    final = response_of(list(respond(room, max_output_tokens=None, stream=True)))
    same(final.status, "completed", "status")
    same(room.client.responses.retrieve(final.id), final, "the stored response")


@check("responses streamed: a limit ends with response.incomplete")
def responses_streamed_limit(room):
    events = list(respond(room, stream=True))
    final = response_of(events)
    same((events[-1].type, final.status, final.incomplete_details.reason),
         ("response.incomplete", "incomplete", "max_output_tokens"), "the end")
    same((final.usage.output_tokens, final.output[0].status), (16, "incomplete"), "tokens, item status")
    same(final.usage, respond(room).usage, "streamed usage, beside the plain answer's")


@check("responses.stream() helper: snapshots grow to the final response; until_done")
def responses_helper(room):
    with room.client.responses.stream(model=MODEL, input=QUESTION) as stream:
        events = list(stream)
        final = stream.get_final_response()
    same((events[0].type, events[-1].type), ("response.created", "response.completed"), "first and last event")
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    same(deltas[-1].snapshot, final.output_text, "the last snapshot")
    same("".join(event.delta for event in deltas), final.output_text, "the deltas")
    same(room.client.responses.retrieve(final.id).output_text, final.output_text, "the stored text")
    with room.client.responses.stream(model=MODEL, input=QUESTION, previous_response_id=final.id) as stream:
        after = stream.until_done().get_final_response()
    same((after.previous_response_id, after.status), (final.id, "completed"), "the next turn")


@check("responses: items as input, with and without type, an earlier output and an item_reference")
def responses_items(room):
    first = respond(room, input=[{"role": "user", "content": "Hello"}])
    said = [item.model_dump() for item in first.output]
    again = respond(room, input=[
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "Hello"}, *said, {"role": "user", "content": QUESTION}])
    listed = list(room.client.responses.input_items.list(again.id, order="asc"))
    same([item.role for item in listed], ["developer", "user", "assistant", "user"], "roles")
    same(listed[2].content[0].text, first.output_text, "the assistant's text")
    referred = respond(room, input=[{"type": "item_reference", "id": first.output[0].id},
                                    {"role": "user", "content": QUESTION}])
    listed = list(room.client.responses.input_items.list(referred.id, order="asc"))
    same([item.content[0].text for item in listed], [first.output_text, QUESTION], "the referred item's text")


def five_turns(room, turn):
    """Five turns by turn(**request) -> response; each must know all earlier ones."""
    texts, inputs, previous = [], [], None
    for number in range(5):
        asked = "Turn %d: and then?" % number
        more = {} if previous is None else {"previous_response_id": previous.id}
        response = turn(input=asked, instructions="Only turn %d." % number if number == 1 else openai.omit, **more)
        same(response.previous_response_id, previous.id if previous else None, "previous_response_id")
        same(response.instructions, "Only turn 1." if number == 1 else None, "instructions")
        if previous is not None:
            need(response.usage.input_tokens > inputs[-1] if number != 2 else True, "input tokens do not grow")
        inputs.append(response.usage.input_tokens)
        listed = list(room.client.responses.input_items.list(response.id, order="asc"))
        same([item.content[0].text for item in listed], texts + [asked], "what turn %d was given" % number)
        same([item.role for item in listed], ["user", "assistant"] * number + ["user"], "roles of turn %d" % number)
        same(len({item.id for item in listed}), len(listed), "number of item ids")
        texts += [asked, response.output_text]
        previous = response
    step = inputs[4] - inputs[3]  # a question, an answer and what stands around them
    same(inputs[3] - inputs[0], 3 * step, "growth of the input tokens over three turns of equal length")


@check("conversation of five turns by previous_response_id, plain")
def conversation_plain(room):
    five_turns(room, lambda **body: respond(room, **body))


@check("conversation of five turns by previous_response_id, streamed")
def conversation_streamed(room):
    five_turns(room, lambda **body: response_of(list(respond(room, stream=True, **body))))


@check("conversation of five turns by previous_response_id, stream helper")
def conversation_helper(room):
    def turn(**body):
        with room.client.responses.stream(
            model=MODEL, max_output_tokens=16, extra_body={"ignore_eos": True}, **body
        ) as stream:
            for event in stream:
                if event.type in TERMINAL:
                    return event.response

    five_turns(room, turn)


@check("two branches from one response do not see each other")
def branches(room):
    root = respond(room, input="Root")
    left = respond(room, input="Left", previous_response_id=root.id)
    right = respond(room, input="Right", previous_response_id=root.id)
    for end, said in ((left, "Left"), (right, "Right")):
        listed = room.client.responses.input_items.list(end.id, order="asc")
        same([item.content[0].text for item in listed], ["Root", root.output_text, said], said)


@check("responses: retrieve gives the created object, delete makes it unknown, later turns stay")
def retrieve_and_delete(room):
    first = respond(room)
    second = respond(room, previous_response_id=first.id)
    same(room.client.responses.retrieve(first.id), first, "the retrieved response")
    same(room.client.responses.delete(first.id), None, "what the SDK makes of the deletion")
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve(first.id), 404)
    refused(openai.NotFoundError, lambda: room.client.responses.delete(first.id), 404)
    refused(openai.NotFoundError, lambda: room.client.responses.input_items.list(first.id), 404)
    refused(openai.BadRequestError, lambda: respond(room, previous_response_id=first.id), 400,
            "previous_response_not_found", "previous_response_id")
    same(room.client.responses.retrieve(second.id), second, "the later turn")
    third = respond(room, previous_response_id=second.id)
    listed = room.client.responses.input_items.list(third.id, order="asc")
    same(len(list(listed)), 5, "items that a turn after the deletion was given")


@check("responses: store=False leaves no trace")
def not_stored(room):
    for streamed in (False, True):
        answer = respond(room, store=False, stream=streamed)
        response = response_of(list(answer)) if streamed else answer
        same(response.model_dump()["store"], False, "store")
        refused(openai.NotFoundError, lambda: room.client.responses.retrieve(response.id), 404)
        refused(openai.BadRequestError, lambda: respond(room, previous_response_id=response.id), 400,
                "previous_response_not_found", "previous_response_id")


@check("input_items.list pages by itself over a chain of 30 turns, both ways, all page sizes alike")
def paging(room):
    wanted, previous = [], openai.omit
    for number in range(30):
        response = respond(room, input="Turn %d" % number, previous_response_id=previous)
        wanted += ["Turn %d" % number, response.output_text]
        previous = response.id
    wanted.pop()  # its own output is not among its input
    for limit in (openai.omit, 1, 7, 59, 100):
        for order in ("asc", "desc"):
            page = room.client.responses.input_items.list(previous, limit=limit, order=order)
            size = min(20 if limit is openai.omit else limit, 59)
            same((len(page.data), page.has_more), (size, size < 59), "first page of limit %s" % limit)
            found = list(page)
            same(len({item.id for item in found}), 59, "different ids, limit %s %s" % (limit, order))
            texts = [item.content[0].text for item in found]
            same(texts if order == "asc" else texts[::-1], wanted, "texts, limit %s %s" % (limit, order))
    newest = room.client.responses.input_items.list(previous)
    same(newest.data[0].content[0].text, "Turn 29", "the first item without an order")
    rest = room.client.responses.input_items.list(previous, after=newest.data[3].id, limit=2)
    same([item.id for item in rest.data], [item.id for item in newest.data[4:6]], "the items after the fourth")
    refused(openai.BadRequestError, lambda: room.client.responses.input_items.list(previous, after="msg_no"),
            400, "invalid_value", "after")


# ---- responses: background, resume, cancel ----------------------------------------------------

LONG_TOKENS = 800  # 0.8 s on the main server
LONG = {"max_output_tokens": LONG_TOKENS, "background": True}


def poll(client, response):
    """The response when it is no longer queued or in progress."""
    deadline = time.monotonic() + WAIT_S
    while response.status in ("queued", "in_progress"):
        need(time.monotonic() < deadline, "it is still %s after %g s" % (response.status, WAIT_S))
        time.sleep(0.02)
        response = client.responses.retrieve(response.id)
    return response


def leave(stream, count):
    """The first events of a stream, which is then cut off."""
    events = [next(stream) for _ in range(count)]
    stream.close()
    return events


def resume(room, id, **more):
    """All events of retrieve() with stream."""
    return list(room.client.responses.retrieve(id, stream=True, **more))


@check("background plain: queued at once, in progress with a growing text, then completed; a chain goes on from it")
def background_plain(room):
    queued = respond(room, **LONG)
    same((queued.status, queued.background, queued.output, queued.usage), ("queued", True, [], None), "the answer")
    seen, response, deadline = [], queued, time.monotonic() + WAIT_S
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        seen.append(response.output_text)
        time.sleep(0.05)
        response = room.client.responses.retrieve(queued.id)
    same((response.status, response.usage.output_tokens), ("incomplete", LONG_TOKENS), "the end")
    need(len(set(seen)) > 2, "the text did not grow: %d different ones" % len(set(seen)))
    for text in seen:
        need(response.output_text.startswith(text), "%r is not how the final text begins" % text[-80:])
    same(room.client.responses.retrieve(queued.id), response, "the response, asked for again")
    after = respond(room, previous_response_id=queued.id)
    listed = list(room.client.responses.input_items.list(after.id, order="asc"))
    same(listed[1].content[0].text, response.output_text, "what the next turn was given")


@check("background streamed: created and queued, then as any stream; left at once, it completes all the same")
def background_streamed(room):
    final = response_of(list(respond(room, background=True, stream=True, max_output_tokens=None)), background=True)
    same((final.status, final.background), ("completed", True), "the end")
    same(room.client.responses.retrieve(final.id), final, "the stored response")
    (created,) = leave(respond(room, stream=True, **LONG), 1)
    same(created.response.status, "queued", "the first event's status")
    same(poll(room.client, created.response).usage.output_tokens, LONG_TOKENS, "output tokens of the one that was left")


@check("cut off in mid-stream three times, resumed by starting_after: no event lost or doubled, the same final object")
def background_resume(room):
    events = leave(respond(room, stream=True, **LONG), 10)
    id = events[0].response.id
    for count in (1, 40):
        events += leave(room.client.responses.retrieve(
            id, stream=True, starting_after=events[-1].sequence_number), count)
    same(room.client.responses.retrieve(id).status, "in_progress", "status at the third cut")
    events += resume(room, id, starting_after=events[-1].sequence_number)
    final = response_of(events, background=True)
    same((final.status, final.usage.output_tokens), ("incomplete", LONG_TOKENS), "the end")
    same(room.client.responses.retrieve(id), final, "the stored response")
    same(resume(room, id), events, "a replay from the start")
    same(resume(room, id, starting_after=200), events[201:], "a replay from the middle")
    same(resume(room, id, starting_after=events[-1].sequence_number), [], "a replay from beyond the end")


@check("responses.stream() over a background response: left, resumed by response_id and starting_after")
def background_helper(room):
    with room.client.responses.stream(
        model=MODEL, input=QUESTION, background=True, extra_body={"min_tokens": LONG_TOKENS}
    ) as stream:
        events = [next(stream) for _ in range(20)]
    id, last = events[0].response.id, events[-1].sequence_number
    with room.client.responses.stream(response_id=id, starting_after=last) as stream:
        rest = list(stream)
        final = stream.get_final_response()
    same([event.sequence_number for event in events + rest], list(range(len(events + rest))), "sequence numbers")
    text = "".join(event.delta for event in events + rest if event.type == "response.output_text.delta")
    same((text, final.status), (final.output_text, "completed"), "the deltas joined")
    need(final.usage.output_tokens >= LONG_TOKENS, "only %d tokens" % final.usage.output_tokens)
    same(rest[0].snapshot[: len(rest[0].snapshot) - len(rest[0].delta)],
         "".join(event.delta for event in events if event.type == "response.output_text.delta"), "the first snapshot")
    same(room.client.responses.retrieve(id).output_text, final.output_text, "the stored text")


@check("AsyncOpenAI: twelve watchers of one background response, live and late, all see the same events")
def background_watchers(room):
    async def run():
        async with room.connect(room.base_url, AsyncOpenAI) as client:
            first = await client.responses.create(
                model=MODEL, input=QUESTION, stream=True, extra_body={"ignore_eos": True}, **LONG)
            created = await first.__anext__()

            async def watch(after):
                stream = await client.responses.retrieve(created.response.id, stream=True, starting_after=after)
                return after, [event async for event in stream]

            found = await asyncio.gather(*(watch(number * 30) for number in range(12)))
            return [created] + [event async for event in first], found

    events, found = asyncio.run(run())
    same(response_of(events, background=True).usage.output_tokens, LONG_TOKENS, "output tokens")
    for after, seen in found:
        same(seen, events[after + 1:], "what the watcher from %d on saw" % after)


@check("cancel in mid-generation: partial output kept, no usage, twice the same; its stream just ends")
def cancel(room):
    stream = respond(room, stream=True, **dict(LONG, max_output_tokens=4000))
    events = [next(stream) for _ in range(40)]
    id = events[0].response.id
    cancelled = room.client.responses.cancel(id)
    same((cancelled.id, cancelled.status, cancelled.usage), (id, "cancelled", None), "the answer")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    need(cancelled.output_text.startswith(said), "the partial text is not what was streamed")
    rest = list(stream)
    same([event.type for event in rest if event.type in TERMINAL], [], "terminal events after the cancellation")
    same(room.client.responses.cancel(id), cancelled, "cancelled again")
    same(room.client.responses.retrieve(id), cancelled, "the stored response")
    same(resume(room, id), events + rest, "a replay of what was out")
    queued = respond(room, **LONG)
    same(room.client.responses.cancel(queued.id).status, "cancelled", "one that nobody watches")
    done = poll(room.client, respond(room, background=True))
    same(room.client.responses.cancel(done.id), done, "one that had ended, cancelled")


@check("errors: cancel and resume of a foreground response, background with store=False, deleted while generating")
def background_errors(room):
    responses = room.client.responses
    plain = respond(room)
    refused(openai.BadRequestError, lambda: responses.cancel(plain.id), 400)
    refused(openai.BadRequestError, lambda: responses.retrieve(plain.id, stream=True), 400, None, "stream")
    unstreamed = poll(room.client, respond(room, background=True))
    refused(openai.BadRequestError, lambda: responses.retrieve(unstreamed.id, stream=True), 400, None, "stream")
    refused(openai.NotFoundError, lambda: responses.cancel("resp_none"), 404)
    refused(openai.NotFoundError, lambda: responses.retrieve("resp_none", stream=True), 404)
    refused(openai.BadRequestError, lambda: respond(room, background=True, store=False), 400, None, "background")
    running = respond(room, **LONG)
    refused(openai.BadRequestError, lambda: respond(room, previous_response_id=running.id), 400, None,
            "previous_response_id")
    responses.delete(running.id)
    refused(openai.NotFoundError, lambda: responses.retrieve(running.id), 404)
    refused(openai.NotFoundError, lambda: responses.cancel(running.id), 404)


@check("a context that is too long: BadRequestError plain, response.failed streamed and in the background")
def context_too_long(room):
    client = room.narrow()
    long = {"model": MODEL, "input": QUESTION * 30}
    refused(openai.BadRequestError, lambda: client.responses.create(**long), 400, "context_length_exceeded", "input")
    stream = client.responses.create(stream=True, **long)
    created = next(stream).response
    same(next(stream).type, "response.in_progress", "the second event")
    error = refused(openai.APIError, lambda: next(stream))  # the SDK's exception for an `error` event
    same((error.code, error.param), ("context_length_exceeded", "input"), "the error's code and param")
    # The service's code for this is not among those that the SDK's model of a response knows.
    loose = room.connect(room.narrow_url, strict=False)
    for response in (created, client.responses.create(background=True, **long)):
        ended = poll(loose, response)
        same((ended.status, ended.error.code, ended.output), ("failed", "context_length_exceeded", []), "the end")
    kept = client.responses.create(truncation="auto", model=MODEL, input=[
        {"role": "user", "content": QUESTION * 6}, {"role": "user", "content": QUESTION}], max_output_tokens=16)
    need(kept.usage.input_tokens < 100, "truncation left %d input tokens" % kept.usage.input_tokens)


@check("RateLimitError: more background responses than the server generates at once")
def too_many(room):
    client = room.narrow()
    first = client.responses.create(model=MODEL, input=QUESTION, background=True)
    error = refused(openai.RateLimitError, lambda: client.responses.create(
        model=MODEL, input=QUESTION, background=True), 429, "rate_limit_exceeded")
    same(error.response.headers["retry-after"], "1", "retry-after")
    client.responses.cancel(first.id)
    again = client.responses.create(model=MODEL, input=QUESTION, background=True)
    same(client.responses.cancel(again.id).status, "cancelled", "the next one's status")


# ---- responses: parsed output, tokens, compaction ---------------------------------------------


class Port(BaseModel):
    """What a parsed answer is to be."""

    name: str
    berths: int


class Sail(BaseModel):
    """The arguments of a tool."""

    knots: int
    to: Port


@check("responses.parse over a chain: an object of the type at each turn, the stream helper's too")
def parse_chain(room):
    previous, texts = openai.omit, []
    for number in range(3):
        answer = room.client.responses.parse(
            model=MODEL, input="Port %d?" % number, text_format=Port, previous_response_id=previous)
        same(type(answer.output_parsed), Port, "the parsed output of turn %d" % number)
        same(Port.model_validate_json(answer.output_text), answer.output_parsed, "the text, parsed")
        same(answer.text.format.type, "json_schema", "the format")
        texts += ["Port %d?" % number, answer.output_text]
        previous = answer.id
    with room.client.responses.stream(
        model=MODEL, input="And?", text_format=Port, previous_response_id=previous
    ) as stream:
        final = stream.get_final_response()
    same(Port.model_validate_json(final.output_text), final.output_parsed, "the helper's parsed output")
    listed = room.client.responses.input_items.list(final.id, order="asc", limit=2)
    same([item.content[0].text for item in listed], texts + ["And?"], "the chain")


@check("responses.parse with a tool: parsed arguments; the output goes to the call of the turn before")
def parse_tool(room):
    tool = openai.pydantic_function_tool(Sail, name="sail_to")
    called = room.client.responses.parse(model=MODEL, input="Go.", tools=[tool], tool_choice="required")
    call = called.output[0]
    same((call.type, call.name, type(call.parsed_arguments)), ("function_call", "sail_to", Sail), "the call")
    told = room.client.responses.parse(
        model=MODEL, previous_response_id=called.id, text_format=Port,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "There."}])
    same(type(told.output_parsed), Port, "the parsed output")
    listed = list(room.client.responses.input_items.list(told.id, order="asc"))
    same([item.type for item in listed], ["message", "function_call", "function_call_output"], "the items")
    same((listed[1].id, listed[2].call_id), (call.id, call.call_id), "the ids")
    refused(openai.BadRequestError, lambda: respond(room, previous_response_id=told.id, input=[
        {"type": "function_call_output", "call_id": "call_none", "output": "?"}]), 400, None, "input")


@check("reasoning.encrypted_content: a client that stores nothing sends the reasoning back")
def encrypted_reasoning(room):
    stateless = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"},
                 "max_output_tokens": None}
    first = respond(room, **stateless)
    same([item.type for item in first.output], ["reasoning", "message"], "the items")
    need(first.output[0].encrypted_content, "no encrypted content")
    said = [item.to_dict() for item in first.output]
    second = respond(room, input=[{"role": "user", "content": QUESTION}, *said, {"role": "user", "content": "And?"}],
                     **stateless)
    need(second.usage.input_tokens > first.usage.input_tokens, "the items that came back are not counted")


@check("input_tokens.count: what the turn would count, over chains, conversations and tools; nothing is stored")
def input_tokens(room):
    count = room.client.responses.input_tokens.count
    root = respond(room)
    conversation = room.client.conversations.create(items=[{"role": "user", "content": "Hello"}])
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
    for more in ({}, {"instructions": "Be brief."}, {"previous_response_id": root.id}, {"tools": [tool]},
                 {"conversation": conversation.id}, {"input": [{"role": "user", "content": "One"}] * 3}):
        body = dict({"model": MODEL, "input": QUESTION}, **more)
        counted = count(**body)
        same(counted.object, "response.input_tokens", "object")
        same(counted.input_tokens, room.client.responses.create(store=False, **body).usage.input_tokens,
             "tokens counted with %s, beside those of the turn" % ", ".join(more))
    need(count().input_tokens >= 0, "the count of nothing")
    before = list(room.client.conversations.items.list(conversation.id))
    count(model=MODEL, input=QUESTION, conversation=conversation.id)
    same(list(room.client.conversations.items.list(conversation.id)), before, "the conversation's items")
    refused(openai.BadRequestError, lambda: count(model=MODEL, previous_response_id="resp_none"), 400,
            "previous_response_not_found", "previous_response_id")


# ---- built-in tools ---------------------------------------------------------------------------

# family -> (the tool, the items that it makes, in front of a text or, where the client must answer, alone)
BUILTINS = {
    "web_search": ({"type": "web_search"}, ["web_search_call"]),
    "file_search": ({"type": "file_search", "vector_store_ids": ["vs_1"]}, ["file_search_call"]),
    "code_interpreter": ({"type": "code_interpreter", "container": {"type": "auto"}}, ["code_interpreter_call"]),
    "image_generation": ({"type": "image_generation", "partial_images": 1}, ["image_generation_call"]),
    "mcp": ({"type": "mcp", "server_label": "notes", "server_url": "https://example.com/mcp", "require_approval": "never"},
            ["mcp_list_tools", "mcp_call"]),
    "shell": ({"type": "shell"}, ["shell_call"]),
    "local_shell": ({"type": "local_shell"}, ["local_shell_call"]),
    "apply_patch": ({"type": "apply_patch"}, ["apply_patch_call"]),
    "computer": ({"type": "computer"}, ["computer_call"]),
}
BUILTIN_OUTPUTS = {
    "shell": {"type": "shell_call_output", "output": [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    "local_shell": {"type": "local_shell_call_output", "output": "a"},
    "apply_patch": {"type": "apply_patch_call_output", "status": "completed", "output": "a"},
    "computer": {"type": "computer_call_output", "output": {
        "type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}},
}
BUILTIN_INCLUDES = ["file_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"]


# How it is chosen; the SDK's types of a choice know no web_search, and no local_shell at all.
BUILTIN_CHOICES = dict({name: {"type": name} for name in BUILTINS}, mcp={"type": "mcp", "server_label": "notes"},
                       web_search={"type": "web_search_preview"}, local_shell="required")


def use_builtin(room, name, **more):
    return respond(room, **dict({"tools": [BUILTINS[name][0]], "tool_choice": BUILTIN_CHOICES[name],
                                 "max_output_tokens": None, "extra_body": {}}, **more))


def need_builtin(name, output):
    """The items of a family, parsed by the SDK's own types."""
    kinds = BUILTINS[name][1] + ([] if name in BUILTIN_OUTPUTS else ["message"])
    same([item.type for item in output], kinds, name)
    for item in output:
        need(type(item).__module__.startswith("openai.types."), "%s was parsed as %s" % (item.type, type(item)))
        need(item.type == "mcp_list_tools" or item.status == "completed", item.type + " is not completed")
    if name not in BUILTIN_OUTPUTS:
        part = output[-1].content[0]
        need(part.text.strip(), "no text")
        kinds = {"web_search": ["url_citation"] * 2, "file_search": ["file_citation"] * 2,
                 "code_interpreter": ["container_file_citation"]}
        same([note.type for note in part.annotations], kinds.get(name, []), "annotations")
        for note in part.annotations:
            end = note.index if note.type == "file_citation" else note.end_index
            need(0 < end <= len(part.text), "the citation's place is outside the text")


@check("built-in tools: every family plain, streamed, by the helper, retrieved; the SDK's types know its items")
def builtin_families(room):
    for name in BUILTINS:
        plain = use_builtin(room, name, include=BUILTIN_INCLUDES)
        need_builtin(name, plain.output)
        same(room.client.responses.retrieve(plain.id).output, plain.output, "retrieved")
        events = list(use_builtin(room, name, include=BUILTIN_INCLUDES, stream=True))
        same([event.sequence_number for event in events], list(range(len(events))), "sequence numbers")
        for event in events:
            need(type(event).__module__.startswith("openai.types."), "%s was parsed as %s" % (event.type, type(event)))
        final = events[-1].response
        need_builtin(name, final.output)
        done = [event.item for event in events if event.type == "response.output_item.done"]
        same(done, final.output, "the items of output_item.done")
        with room.client.responses.stream(model=MODEL, input=QUESTION, tools=[BUILTINS[name][0]],
                                          tool_choice=BUILTIN_CHOICES[name]) as stream:
            for _ in stream:
                pass
            need_builtin(name, stream.get_final_response().output)


@check("built-in tools: include at the create and at a later retrieve or listing fills in the same fields")
def builtin_include(room):
    bare = use_builtin(room, "web_search")
    same(getattr(bare.output[0].action, "sources", None), None, "sources without include")
    full = room.client.responses.retrieve(bare.id, include=BUILTIN_INCLUDES)
    need(full.output[0].action.sources[0].url.startswith("https://example.com/"), "no sources")
    files = use_builtin(room, "file_search", include=BUILTIN_INCLUDES)
    same(files.output[0].results[0].filename, files.output[1].content[0].annotations[0].filename, "the cited file")
    later = respond(room, previous_response_id=use_builtin(room, "code_interpreter").id)
    page = room.client.responses.input_items.list(later.id, include=BUILTIN_INCLUDES)
    code = next(item for item in page.data if item.type == "code_interpreter_call")
    same(code.outputs[0].type, "logs", "outputs")


@check("built-in tools: calls that wait are answered by their outputs, chained and stateless")
def builtin_outputs(room):
    for name, output in BUILTIN_OUTPUTS.items():
        first = use_builtin(room, name)
        call = first.output[0]
        answer = dict(output, call_id=call.call_id, id=call.call_id) if name == "local_shell" else dict(
            output, call_id=call.call_id)
        second = respond(room, input=[answer], previous_response_id=first.id, tools=[BUILTINS[name][0]])
        need(second.output_text.strip(), "no text after the output of " + name)
        given = ASK + [call.model_dump(exclude_none=True), answer]
        need(respond(room, input=given, tools=[BUILTINS[name][0]], store=False).output_text.strip(), "stateless " + name)


@check("built-in tools: an MCP approval is asked for, then given or denied")
def builtin_approval(room):
    tool = dict(BUILTINS["mcp"][0], require_approval="always")
    first = use_builtin(room, "mcp", tools=[tool])
    same([item.type for item in first.output], ["mcp_list_tools", "mcp_approval_request"], "the items")
    asked = first.output[1]
    for approve, kinds in ((True, ["mcp_call", "message"]), (False, ["message"])):
        second = respond(room, previous_response_id=first.id, tools=[tool], max_output_tokens=None, extra_body={}, input=[
            {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}])
        same([item.type for item in second.output], kinds, "the items, approved %s" % approve)
        if approve:
            call = second.output[0]
            same((call.approval_request_id, call.name, call.arguments), (asked.id, asked.name, asked.arguments), "the call")


@check("compact: the user's messages and one compaction item, which go on as input of the next turn")
def compact(room):
    previous, texts = openai.omit, []
    for number in range(4):
        turn = respond(room, input="Turn %d" % number, previous_response_id=previous, max_output_tokens=100)
        texts.append("Turn %d" % number)
        previous = turn.id
    # The SDK types the window as output items, which a user's message is not: that is read without validation.
    loose = room.connect(room.base_url, strict=False)
    window = loose.responses.compact(model=MODEL, previous_response_id=previous)
    same(window.object, "response.compaction", "object")
    same([item.type for item in window.output], ["message"] * 4 + ["compaction"], "the items")
    same([item.content[0].text for item in window.output[:-1]], texts, "the user's messages")
    need(window.output[-1].encrypted_content, "the compaction item is empty")
    same(window.usage.total_tokens, window.usage.input_tokens + window.usage.output_tokens, "total_tokens")
    items = [item.to_dict(warnings=False) for item in window.output] + [{"role": "user", "content": "And?"}]
    after = respond(room, input=items)
    listed = list(room.client.responses.input_items.list(after.id, order="asc"))
    same([item.type for item in listed], ["message"] * 4 + ["compaction", "message"], "what the next turn was given")
    same(listed[4].encrypted_content, window.output[-1].encrypted_content, "the compaction item")
    whole = respond(room, input="And?", previous_response_id=previous)
    need(after.usage.input_tokens < whole.usage.input_tokens, "the window is not shorter than the chain")
    again = loose.responses.compact(model=MODEL, input=items)
    same([item.type for item in again.output], ["message"] * 5 + ["compaction"], "the window's own compaction")
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve(window.id), 404)
    refused(openai.BadRequestError, lambda: respond(room, previous_response_id=window.id), 400,
            "previous_response_not_found", "previous_response_id")
    refused(openai.BadRequestError, lambda: loose.responses.compact(model=MODEL), 400, "missing_required_parameter",
            "input")


# ---- conversations ----------------------------------------------------------------------------


def messages(*texts):
    """User messages as items."""
    return [{"type": "message", "role": "user", "content": text} for text in texts]


def texts_of(room, id):
    """The texts of all messages of a conversation, oldest first."""
    return [item.content[0].text for item in room.client.conversations.items.list(id, order="asc")]


@check("conversations: create, retrieve, update, delete; then NotFoundError everywhere")
def conversations(room):
    calls = room.client.conversations
    made = calls.create(metadata={"who": "ann"}, items=messages("One", "Two"))
    same((made.object, made.metadata, made.id[:5]), ("conversation", {"who": "ann"}, "conv_"), "the conversation")
    need(abs(made.created_at - time.time()) < 60, "created_at is not now")
    same(calls.retrieve(made.id), made, "the retrieved conversation")
    changed = calls.update(made.id, metadata={"which": "new"})
    same((changed.id, changed.created_at, changed.metadata), (made.id, made.created_at, {"which": "new"}), "updated")
    same(calls.retrieve(made.id), changed, "the conversation after the update")
    same(texts_of(room, made.id), ["One", "Two"], "its items")
    same(texts_of(room, calls.create().id), [], "items of a new one")
    gone = calls.delete(made.id)
    same((gone.id, gone.object, gone.deleted), (made.id, "conversation.deleted", True), "the deletion")
    for call in (
        lambda: calls.retrieve(made.id),
        lambda: calls.update(made.id, metadata={}),
        lambda: calls.delete(made.id),
        lambda: calls.items.list(made.id),
        lambda: calls.items.create(made.id, items=messages("Three")),
        lambda: respond(room, conversation=made.id),
    ):
        refused(openai.NotFoundError, call, 404)
    refused(openai.BadRequestError, lambda: calls.create(items=messages(*["x"] * 21)), 400,
            "array_above_max_length", "items")
    refused(openai.BadRequestError, lambda: calls.create(metadata={"k" * 65: "v"}), 400,
            "string_above_max_length", "metadata." + "k" * 65)


@check("conversations.items: create, list with auto-paging both ways, retrieve, delete")
def conversation_items(room):
    calls = room.client.conversations
    id = calls.create().id
    wanted = []
    for start in range(0, 60, 20):
        batch = ["Item %d" % number for number in range(start, start + 20)]
        made = calls.items.create(id, items=messages(*batch))
        same([item.content[0].text for item in made.data], batch, "the created items")
        same((made.first_id, made.last_id, made.has_more), (made.data[0].id, made.data[-1].id, False), "the list")
        wanted += made.data
    for limit in (openai.omit, 1, 7, 100):
        for order in ("asc", "desc"):
            found = list(calls.items.list(id, limit=limit, order=order))
            same(found, wanted if order == "asc" else wanted[::-1], "all items, limit %s %s" % (limit, order))
    same(calls.items.list(id).data, wanted[:-21:-1], "the page without parameters")
    same(calls.items.list(id, after=wanted[30].id, order="asc", limit=2).data, wanted[31:33], "after the 31st")
    same(calls.items.retrieve(wanted[5].id, conversation_id=id), wanted[5], "the sixth item")
    left = calls.items.delete(wanted[5].id, conversation_id=id)
    same((left.id, left.object), (id, "conversation"), "what a deletion gives")
    same(list(calls.items.list(id, order="asc", limit=30)), wanted[:5] + wanted[6:], "items after the deletion")
    refused(openai.NotFoundError, lambda: calls.items.retrieve(wanted[5].id, conversation_id=id), 404)
    refused(openai.NotFoundError, lambda: calls.items.delete(wanted[5].id, conversation_id=id), 404)
    refused(openai.BadRequestError, lambda: calls.items.list(id, after="msg_no"), 400, "invalid_value", "after")


@check("conversation on a response: five turns by string and object, plain, streamed, helper; items keep their ids")
def conversation_turns(room):
    id = room.client.conversations.create(items=messages("Before")).id
    texts, ids, tokens = ["Before"], [], []
    for number in range(5):
        body = {"input": "Turn %d" % number, "conversation": {"id": id} if number % 2 else id}
        if number == 2:
            answer = response_of(list(respond(room, stream=True, **body)))
        elif number == 3:
            with room.client.responses.stream(model=MODEL, **body) as stream:
                answer = stream.get_final_response()
        elif number == 4:
            answer = poll(room.client, respond(room, background=True, **body))
        else:
            answer = respond(room, store=number == 0, **body)
        same((answer.conversation.id, answer.previous_response_id), (id, None), "the conversation of the answer")
        if number != 1:  # that one is not stored
            listed = list(room.client.responses.input_items.list(answer.id, order="asc", limit=3))
            same([item.content[0].text for item in listed], texts + ["Turn %d" % number], "what turn %d got" % number)
        texts += ["Turn %d" % number, answer.output_text]
        ids.append(answer.output[0].id)
        tokens.append(answer.usage.input_tokens)
        same(texts_of(room, id), texts, "the conversation after turn %d" % number)
    same([item.id for item in room.client.conversations.items.list(id, order="asc") if item.role == "assistant"], ids,
         "the ids of the answers")
    need(tokens == sorted(set(tokens)), "input tokens do not grow: %s" % tokens)
    room.client.conversations.items.delete(ids[0], conversation_id=id)
    same(texts_of(room, id), texts[:2] + texts[3:], "the conversation without an answer")


@check("BadRequestError: conversation_locked while one generates, its items come after the end; not with previous_*")
def conversation_locked(room):
    id = room.client.conversations.create().id
    running = respond(room, conversation=id, **LONG)
    locked = (400, "conversation_locked", "conversation")
    error = refused(openai.BadRequestError, lambda: respond(room, conversation=id), *locked)
    need(id in error.message, "the message does not name the conversation: " + error.message)
    refused(openai.BadRequestError, lambda: respond(room, conversation={"id": id}, stream=True), *locked)
    refused(openai.BadRequestError, lambda: room.client.conversations.items.create(id, items=messages("x")), *locked)
    same(texts_of(room, id), [], "items while it generates")
    answer = poll(room.client, running)
    same(texts_of(room, id), [QUESTION, answer.output_text], "items after the end")
    same(respond(room, conversation=id).status, "incomplete", "the next turn")
    kept = texts_of(room, id)
    room.client.responses.cancel(respond(room, conversation=id, **LONG).id)
    same(texts_of(room, id), kept, "items after a cancelled turn")
    refused(openai.BadRequestError, lambda: respond(room, conversation=id, previous_response_id=answer.id), 400,
            "mutually_exclusive_parameters", "previous_response_id")
    refused(openai.NotFoundError, lambda: respond(room, conversation="conv_none"), 404)
    same(texts_of(room, id), kept, "items after refused requests")


# ---- stored chat completions ------------------------------------------------------------------


@check("stored chats: plain and streamed are retrieved, updated, deleted; what was not stored is NotFoundError")
def stored_chats(room):
    calls = room.client.chat.completions
    made = chat(room, store=True, metadata={"a": "b"})
    chunks = list(chat(room, store=True, stream=True, seed=7))
    found = calls.retrieve(made.id)
    same((found.choices, found.usage, found.created), (made.choices, made.usage, made.created), "the stored one")
    same(found.model_dump()["metadata"], {"a": "b"}, "metadata")
    streamed = calls.retrieve(chunks[0].id)
    same((streamed.object, streamed.choices[0].message.content, streamed.choices[0].finish_reason),
         ("chat.completion", chat_texts(chunks)[0], "length"), "the streamed one")
    changed = calls.update(made.id, metadata={"c": "d"})
    same((changed.id, changed.model_dump()["metadata"]), (made.id, {"c": "d"}), "the update")
    same(calls.retrieve(made.id), changed, "the stored one after the update")
    gone = calls.delete(made.id)
    same((gone.id, gone.object, gone.deleted), (made.id, "chat.completion.deleted", True), "the deletion")
    unstored = chat(room)
    for id in (made.id, unstored.id, respond(room).id):
        refused(openai.NotFoundError, lambda: calls.retrieve(id), 404)
        refused(openai.NotFoundError, lambda: calls.update(id, metadata={}), 404)
        refused(openai.NotFoundError, lambda: calls.delete(id), 404)
        refused(openai.NotFoundError, lambda: calls.messages.list(id), 404)
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve(streamed.id), 404)


@check("stored chats: list by metadata and model with auto-paging, both orders")
def stored_chats_list(room):
    calls = room.client.chat.completions
    ids = [chat(room, store=True, max_completion_tokens=2, metadata={"run": "list", "odd": str(number % 2)}).id
           for number in range(25)]
    other = chat(room, store=True, model="other-model", metadata={"run": "list", "odd": "no"}).id
    for limit in (openai.omit, 1, 7, 100):
        for order in ("asc", "desc"):
            found = [one.id for one in calls.list(metadata={"run": "list"}, model=MODEL, limit=limit, order=order)]
            same(found, ids if order == "asc" else ids[::-1], "all of them, limit %s %s" % (limit, order))
    same([one.id for one in calls.list(metadata={"run": "list", "odd": "1"}, limit=5)], ids[1::2], "the odd ones")
    same([one.id for one in calls.list(metadata={"run": "list"}, model="other-model")], [other], "the other model's")
    same(list(calls.list(metadata={"run": "none"})), [], "what fits no stored one")
    page = calls.list(metadata={"run": "list"})
    same(([one.id for one in page.data], page.has_more), (ids[:20], True), "the page without limit and order")
    every = [one.id for one in calls.list(limit=100)]
    same([id for id in every if id in set(ids)], ids, "those of the list of all")


@check("stored chats: messages.list has the input messages, text and parts, with auto-paging")
def stored_chats_messages(room):
    calls = room.client.chat.completions
    given = [{"role": "system", "content": "Be brief."},
             {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}]
    given += [{"role": ("user", "assistant")[number % 2], "content": "Word %d" % number} for number in range(24)]
    # The SDK knows the role assistant only: a stored user's message is read without validation.
    loose = room.connect(room.base_url, strict=False).chat.completions
    id = chat(room, store=True, messages=given).id
    for limit in (openai.omit, 1, 7, 100):
        for order in ("asc", "desc"):
            found = list(loose.messages.list(id, limit=limit, order=order))
            found = found if order == "asc" else found[::-1]
            same([one.role for one in found], [one["role"] for one in given], "roles, limit %s %s" % (limit, order))
            same([one.id for one in found], ["%s-%d" % (id, number) for number in range(26)], "ids")
    same([one.content for one in found[:1] + found[2:]], [one["content"] for one in given[:1] + given[2:]], "texts")
    same([part.text for part in found[1].content_parts], ["Hello", "there"], "the parts")
    same(found[0].content_parts, None, "the parts of a text")


# ---- models, errors, headers ------------------------------------------------------------------


@check("models: list and retrieve")
def models(room):
    listed = list(room.client.models.list())
    same([(model.id, model.object) for model in listed], [(MODEL, "model")], "the list")
    same(room.client.models.retrieve(MODEL), listed[0], "the model")
    need(listed[0].owned_by and listed[0].created > 0, "owned_by or created is empty")
    refused(openai.NotFoundError, lambda: room.client.models.retrieve("none/such"), 404, "model_not_found")


@check("BadRequestError: unknown previous_response_id, plain, streamed and by the helper")
def error_previous(room):
    wanted = (400, "previous_response_not_found", "previous_response_id")
    unknown = {"previous_response_id": "resp_" + "0" * 32}
    error = refused(openai.BadRequestError, lambda: respond(room, **unknown), *wanted)
    need(unknown["previous_response_id"] in error.message, "the message does not name the id")
    same(error.type, "invalid_request_error", "type")
    refused(openai.BadRequestError, lambda: respond(room, stream=True, **unknown), *wanted)

    def by_helper():
        with room.client.responses.stream(model=MODEL, input=QUESTION, **unknown) as stream:
            stream.until_done()

    refused(openai.BadRequestError, by_helper, *wanted)


@check("BadRequestError: bad values name their parameter")
def error_values(room):
    refused(openai.BadRequestError, lambda: chat(room, temperature=9), 400, "decimal_above_max_value", "temperature")
    refused(openai.BadRequestError, lambda: chat(room, messages=[]), 400, "empty_array", "messages")
    refused(openai.BadRequestError, lambda: chat(room, messages=[{"role": "cook", "content": "x"}]),
            400, "invalid_value", "messages[0].role")
    refused(openai.BadRequestError, lambda: chat(room, stream=True, n=0), 400, "integer_below_min_value", "n")
    refused(openai.BadRequestError, lambda: respond(room, max_output_tokens=3),
            400, "integer_below_min_value", "max_output_tokens")
    refused(openai.BadRequestError, lambda: respond(room, input=openai.omit), 400, "missing_required_parameter",
            "input")
    refused(openai.BadRequestError, lambda: respond(room, input=5), 400, "invalid_type", "input")
    refused(openai.BadRequestError, lambda: respond(room, metadata=[]), 400, "invalid_type", "metadata")


@check("NotFoundError: unknown response, unknown path; the connection goes on")
def error_not_found(room):
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve("resp_none"), 404)
    refused(openai.NotFoundError, lambda: room.client.post("/no/such", body={"a": "b" * 5000}, cast_to=object), 404)
    same(chat(room).usage.completion_tokens, 12, "the next answer's tokens")


@check("AuthenticationError: wrong key, plain and streamed; the right one is served")
def error_key(room):
    wrong = room.locked("sk-wrong")
    refused(openai.AuthenticationError, lambda: wrong.models.list(), 401, "invalid_api_key")
    body = {"model": MODEL, "messages": ASK, "max_completion_tokens": 4}
    refused(openai.AuthenticationError, lambda: wrong.chat.completions.create(**body), 401, "invalid_api_key")
    refused(openai.AuthenticationError, lambda: wrong.chat.completions.create(stream=True, **body), 401,
            "invalid_api_key")
    right = room.locked(KEY)
    same(right.chat.completions.create(**body).usage.completion_tokens, 4, "the right key's answer")
    same(chat_texts(right.chat.completions.create(stream=True, **body)).keys(), {0}, "the right key's stream")


@check("APITimeoutError: a plain answer later than the client's patience; the next one arrives")
def error_timeout(room):
    body = {"model": MODEL, "messages": ASK, "max_completion_tokens": 4}
    client = room.slow()
    hasty = client.with_options(timeout=0.25)
    refused(openai.APITimeoutError, lambda: hasty.chat.completions.create(**body))
    refused(openai.APITimeoutError, lambda: hasty.responses.create(model=MODEL, input=QUESTION))
    same(client.chat.completions.create(**body).usage.completion_tokens, 4, "the patient client's tokens")


@check("heartbeats keep a client that reads with a 0.4 s limit through a first token after 0.8 s")
def heartbeats(room):
    hasty = room.slow().with_options(timeout=0.4)
    began = time.monotonic()
    stream = hasty.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=4, stream=True)
    need(chat_texts(stream)[0].strip(), "no text")
    need(time.monotonic() - began > 0.7, "the first token came before its time")
    final = response_of(list(hasty.responses.create(model=MODEL, input=QUESTION, stream=True)))
    same(final.status, "completed", "status")


@check("APIConnectionError: nobody listens")
def error_connection(room):
    with socket.socket() as closed:  # bound and not listening: nobody else gets the port meanwhile
        closed.bind(("127.0.0.1", 0))
        client = room.connect("http://127.0.0.1:%d" % closed.getsockname()[1])
        refused(openai.APIConnectionError, lambda: client.models.list())


@check("with_raw_response: x-request-id and the other headers, new at each request")
def raw_headers(room):
    seen = set()
    completions, responses = room.client.chat.completions, room.client.responses
    for streamed, raw in (
        (False, completions.with_raw_response.create(model=MODEL, messages=ASK, max_completion_tokens=4)),
        (True, completions.with_raw_response.create(model=MODEL, messages=ASK, max_completion_tokens=4, stream=True)),
        (False, responses.with_raw_response.create(model=MODEL, input=QUESTION)),
        (True, responses.with_raw_response.create(model=MODEL, input=QUESTION, stream=True)),
        (False, room.client.models.with_raw_response.list()),
    ):
        same(raw.status_code, 200, "status")
        seen.add(raw.headers["x-request-id"])
        same(raw.request_id, raw.headers["x-request-id"], "request_id")
        kind = raw.headers["content-type"]
        need(kind.startswith("text/event-stream" if streamed else "application/json"), "content-type is " + kind)
        need(int(raw.headers["openai-processing-ms"]) >= 0, "openai-processing-ms")
        same(raw.headers["openai-version"], "2020-10-01", "openai-version")
        parsed = raw.parse()
        if streamed:
            need(list(parsed), "no events")
    same(len(seen), 5, "different request ids")
    same(chat(room)._request_id[:4], "req_", "the object's request id")


@check("with_streaming_response: the raw lines end with [DONE] (chat) and a terminal event (responses)")
def raw_lines(room):
    with room.client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASK, max_completion_tokens=4, stream=True
    ) as raw:
        lines = [line for line in raw.iter_lines() if line and not line.startswith(":")]
    same(lines[-1], "data: [DONE]", "the last line")
    with room.client.responses.with_streaming_response.create(model=MODEL, input=QUESTION, stream=True) as raw:
        lines = [line for line in raw.iter_lines() if line.startswith("event:")]
    same(lines[-1], "event: response.completed", "the last event line")


# ---- early closes and many at once ------------------------------------------------------------


@check("a stream closed early: the client goes on at once, chat and responses")
def early_close(room):
    long = {"extra_body": {"ignore_eos": True}}
    stream = chat(room, stream=True, max_completion_tokens=2000)
    chunks = [next(stream) for _ in range(4)]
    stream.close()
    need(chunks[-1].choices[0].delta.content, "no text before the close")
    same(chat(room).usage.completion_tokens, 12, "the next chat's tokens")
    with room.client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=2000, **long) as stream:
        events = [next(stream) for _ in range(8)]
    room.left_id, room.left_at = events[0].response.id, time.monotonic()
    same(respond(room).usage.output_tokens, 16, "the next response's tokens")
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve(room.left_id), 404)


async def stream_one(client, number):
    """One of many streams: (tokens of its usage, text)."""
    if number % 2:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Stream %d" % number}], max_completion_tokens=30,
            stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        chunks = [chunk async for chunk in stream]
        return chunks[-1].usage.completion_tokens, chat_texts(chunks)[0]
    stream = await client.responses.create(
        model=MODEL, input="Stream %d" % number, max_output_tokens=30, stream=True, extra_body={"ignore_eos": True})
    final = response_of([event async for event in stream])
    return final.usage.output_tokens, final.output_text


@check("AsyncOpenAI: 20 streams at once, chat and responses, each with its own text and all its tokens")
def many_at_once(room):
    async def run():
        async with room.connect(room.base_url, AsyncOpenAI) as client:
            return await asyncio.gather(*(stream_one(client, number) for number in range(20)))

    found = asyncio.run(run())
    same([tokens for tokens, _ in found], [30] * 20, "tokens")
    same(len({text for _, text in found}), 20, "different texts")


@check("AsyncOpenAI: 20 streams of 0.8 s run beside each other, not in a row")
def many_beside(room):
    room.slow()  # so that it runs already

    async def run():
        async with room.connect(room.slow_url, AsyncOpenAI) as client:
            return await asyncio.gather(*(stream_one(client, number) for number in range(20)))

    began = time.monotonic()
    same([tokens for tokens, _ in asyncio.run(run())], [30] * 20, "tokens")
    took = time.monotonic() - began
    need(0.8 <= took < 8.0, "took %.2f s; in a row it is 16 s" % took)


@check("AsyncOpenAI: stream helper, chain, paging, early close, errors")
def async_rest(room):
    async def run():
        async with room.connect(room.base_url, AsyncOpenAI) as client:
            async with client.responses.stream(model=MODEL, input="One") as stream:
                texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
                first = await stream.get_final_response()
            same("".join(texts), first.output_text, "the deltas")
            second = await client.responses.create(model=MODEL, input="Two", previous_response_id=first.id)
            listed = [item async for item in client.responses.input_items.list(second.id, limit=1, order="asc")]
            same([item.content[0].text for item in listed], ["One", first.output_text, "Two"], "the items")
            left = await client.chat.completions.create(
                model=MODEL, messages=ASK, stream=True, max_completion_tokens=2000, extra_body={"ignore_eos": True})
            await left.__anext__()
            await left.close()
            answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=6)
            same(answer.usage.completion_tokens, 6, "tokens after the early close")
            try:
                await client.responses.retrieve("resp_none")
            except openai.NotFoundError as error:
                same(error.status_code, 404, "status")
            else:
                raise AssertionError("no NotFoundError")

    asyncio.run(run())


@check("the response whose client left is not stored, also after the time it would have taken")
def left_is_gone(room):
    need(room.left_id, "the early close did not run")
    time.sleep(max(0.0, room.left_at + 2.5 - time.monotonic()))  # 2,000 tokens at 1 ms
    refused(openai.NotFoundError, lambda: room.client.responses.retrieve(room.left_id), 404)
    refused(openai.BadRequestError, lambda: respond(room, previous_response_id=room.left_id), 400,
            "previous_response_not_found", "previous_response_id")


def parse_options(arguments):
    """The command line as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", nargs="?", help="a main server that already runs, without /v1 (default: an own one)")
    parser.add_argument("--server", default="server.py", help="the file that the own servers run (default: server.py)")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs it (default: this one)")
    parser.add_argument("--only", default="", help="only the checks whose title has this word")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the checks, print a line each, return the exit status."""
    options = parse_options(arguments)
    print("openai %s on Python %s, strict validation" % (openai.__version__, sys.version.split()[0]), flush=True)
    room = Room(options)
    report = Report()
    try:
        room.open()
        for title, function in CHECKS:
            if options.only in title:
                report.run(title, function, room)
    except AssertionError as error:
        report.tell("the main server starts", str(error))
    finally:
        wrong = [text for server in room.servers for text in server.stop()]
    report.tell("every server ends with status 0 on SIGTERM and has logged no exception", "; ".join(wrong))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
