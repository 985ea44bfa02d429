"""The Responses API over a WebSocket, by the openai Python SDK's responses.connect() and by the `websockets` package.

    python .ci/clients_websocket.py [--server PATH] [--python PYTHON] [--only WORD]

Starts its own servers on free ports of the loopback interface, in both forms of the transport, and ends them. Prints
one line per check and, last, "N passed, M failed"; the exit status is 1 when any failed. Run it with the Python of an
environment that holds .ci/requirements-websocket.txt; --python runs the server.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile

import openai
import websockets
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from reporting import CHECKS, Report, check, need, same
from servers import WAIT_S, Server

MODEL = "mock-model"
KEY = "sk-right"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
SHAPE = ("--ttft-ms", "5", "--itl-ms", "1", "--output-tokens", "12")
EVENT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


class Room:
    """What a check may use: servers of one form of the transport, which start when they are asked for."""

    def __init__(self, options, transport):
        self.options = options
        self.transport = transport
        self.servers = {}

    def server(self, *flags):
        """The server with these flags."""
        if flags not in self.servers:
            self.servers[flags] = Server(self.options, "--transport", self.transport, *(flags or SHAPE))
        return self.servers[flags]

    def sdk(self, *flags, kind=OpenAI, key=KEY):
        """The SDK's client of that server."""
        return kind(base_url=self.server(*flags).url + "/v1", api_key=key, max_retries=0, timeout=WAIT_S)

    def url(self, *flags):
        """The WebSocket's URL."""
        return self.server(*flags).url.replace("http", "ws", 1) + "/v1/responses"


def read_turn(connection):
    """The SDK's events up to the one that ends a turn."""
    events = []
    for event in connection:
        events.append(event)
        if event.type in TERMINAL:
            return events
    raise AssertionError("the connection ended after %r" % [event.type for event in events])


def ask(connection, **body):
    """One turn by the SDK, as its events."""
    connection.response.create(**dict({"model": MODEL, "input": "Name a river."}, **body))
    return read_turn(connection)


def create(**body):
    """A response.create message as text."""
    return json.dumps(dict({"type": "response.create", "model": MODEL, "input": "Name a river."}, **body))


def receive_turn(socket):
    """The events up to the one that ends a turn, by the websockets package."""
    events = []
    while not events or events[-1]["type"] not in TERMINAL:
        events.append(json.loads(socket.recv(timeout=WAIT_S)))
    return events


def closed_with(socket):
    """The code of the close that must come next."""
    try:
        while True:
            socket.recv(timeout=WAIT_S)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


# ---- the SDK ----------------------------------------------------------------------------------


@check("SDK connect: the events of a turn in their order, each as its own class, deltas are the text")
def sdk_turn(room):
    with room.sdk().responses.connect() as connection:
        events = ask(connection)
    kinds = [event.type for event in events]
    same([kind for at, kind in enumerate(kinds) if not at or kinds[at - 1] != kind], EVENT_ORDER, "events")
    last = events[-1].response
    same(last.output_text, "".join(event.delta for event in events if event.type.endswith("text.delta")), "the text")
    same(type(events[-1]).__name__, "ResponseWsCompleted", "the class of the last event")
    same((last.status, last.usage.output_tokens), ("completed", 12), "status and usage")


@check("SDK events pass its own model strictly")
def sdk_strict(room):
    adapter = TypeAdapter(ResponsesServerEvent)
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    cases = (
        {},
        {"tools": [tool], "tool_choice": "required"},
        {"reasoning": {"effort": "low", "summary": "auto"}, "stream_id": "lane"},
        {"temperature": 9},
        {"include": ["message.output_text.logprobs"]},
    )
    with room.sdk().responses.connect() as connection:
        for body in cases:
            connection.response.create(**dict({"model": MODEL, "input": "Name a river."}, **body))
            while True:
                event = adapter.validate_json(connection.recv_bytes())
                if event.type in TERMINAL:
                    break


@check("SDK chain that is not stored: goes on here, is unknown on another connection and over HTTP")
def sdk_chain(room):
    client = room.sdk()
    with client.responses.connect() as connection:
        id = ask(connection, store=False)[-1].response.id
        for _ in range(3):
            last = ask(connection, store=False, previous_response_id=id)[-1].response
            same(last.previous_response_id, id, "previous_response_id")
            id = last.id
        with client.responses.connect() as other:
            error = ask(other, store=False, previous_response_id=id)[0]
    same((error.type, error.status, error.error.code, error.error.param),
         ("error", 400, "previous_response_not_found", "previous_response_id"), "the error")
    try:
        client.responses.retrieve(id)
        raise AssertionError("it can be retrieved")
    except openai.NotFoundError:
        pass


@check("SDK stored turns can be retrieved and followed up over HTTP")
def sdk_stored(room):
    client = room.sdk()
    with client.responses.connect() as connection:
        last = ask(connection)[-1].response
    same(client.responses.retrieve(last.id).output_text, last.output_text, "the text")
    same(client.responses.create(model=MODEL, input="And?", previous_response_id=last.id).status, "completed", "status")


@check("SDK tool call and its output in the next turn")
def sdk_tools(room):
    tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
    with room.sdk().responses.connect() as connection:
        first = ask(connection, store=False, tools=tools, tool_choice="required")[-1].response
        output = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "rain"}]
        second = ask(connection, store=False, tools=tools, previous_response_id=first.id, input=output)[-1].response
    same([item.type for item in second.output], ["message"], "the output")


@check("SDK warm-up (generate: false) has no output and can be followed up")
def sdk_warm_up(room):
    with room.sdk().responses.connect() as connection:
        first = ask(connection, generate=False, store=False, instructions="Be brief.")[-1].response
        same((first.status, first.output), ("completed", []), "the warm-up")
        same(ask(connection, store=False, previous_response_id=first.id)[-1].type, "response.completed", "the next turn")


@check("SDK lanes: two at once, a fork beside its source, each event names its lane")
def sdk_lanes(room):
    with room.sdk("--ttft-ms", "150", "--itl-ms", "2", "--output-tokens", "20").responses.connect() as connection:
        for lane in ("planner", "research"):
            connection.response.create(stream_id=lane, model=MODEL, input=lane, store=False)
        ids = read_lanes(connection, {"planner", "research"})
        for lane in ("critic", "planner"):
            connection.response.create(stream_id=lane, model=MODEL, input="Go on.", store=False,
                                       previous_response_id=ids["planner"])
        read_lanes(connection, {"critic", "planner"})


def read_lanes(connection, lanes):
    """{lane: the id of its response} when all have completed; all must begin before one of them ends."""
    ids, begun = {}, set()
    for event in connection:
        need(event.stream_id in lanes, "an event of lane %r" % event.stream_id)
        need(event.type not in ("error", "response.failed"), "a lane failed: " + event.to_json())
        begun.add(event.stream_id)
        if event.type == "response.completed":
            same(begun, lanes, "the lanes that had begun when the first ended")
            ids[event.stream_id] = event.response.id
            if len(ids) == len(lanes):
                return ids
    raise AssertionError("the connection ended")


@check("SDK creates sent one behind the other are answered one after the other")
def sdk_queue(room):
    with room.sdk().responses.connect() as connection:
        for number in range(10):
            connection.response.create(model=MODEL, input="x", metadata={"number": str(number)})
        numbers = [read_turn(connection)[-1].response.metadata["number"] for _ in range(10)]
    same(numbers, [str(number) for number in range(10)], "the order")


@check("SDK handlers: dispatch_events, and an error without a handler raises")
def sdk_handlers(room):
    found = []
    with room.sdk().responses.connect() as connection:

        @connection.on("response.completed")
        def completed(event):
            found.append(event.response.output_text)
            connection.response.create(model=MODEL, input="x", temperature=9)

        connection.response.create(model=MODEL, input="x")
        try:
            connection.dispatch_events()
            raise AssertionError("no exception")
        except openai.OpenAIError as error:
            need("decimal_above_max_value" in str(error), "the exception is %s" % error)
    same(len(found), 1, "completed events")


@check("SDK steering is answered as not supported")
def sdk_steer(room):
    with room.sdk().responses.connect() as connection:
        connection.response.steer(previous_response_id="resp_x", input="left")
        event = next(iter(connection))
    same((event.type, event.error.code, event.steer.input), ("response.steer.failed", "response_not_found", "left"), "it")


@check("SDK asynchronous: twenty connections at once")
def sdk_async(room):
    client = room.sdk(kind=AsyncOpenAI)

    async def one():
        async with client.responses.connect() as connection:
            id = None
            for _ in range(3):
                await connection.response.create(model=MODEL, input="x", store=False, previous_response_id=id)
                async for event in connection:
                    if event.type == "response.completed":
                        id = event.response.id
                        break

    async def all_of_them():
        await asyncio.gather(*[one() for _ in range(20)])
        await client.close()

    asyncio.run(asyncio.wait_for(all_of_them(), WAIT_S))


@check("SDK connects again by itself when its connection's age is over")
def sdk_reconnect(room):
    seen = []

    def reconnecting(event):
        seen.append(event.close_code)
        connection.response.create(model=MODEL, input="x")  # queued by the SDK until the new connection is there

    client = room.sdk("--ttft-ms", "0", "--itl-ms", "0", "--websocket-max-s", "1")
    with client.responses.connect(on_reconnecting=reconnecting, initial_delay=0.01) as connection:
        same(ask(connection)[-1].type, "response.completed", "the first turn")
        events = iter(connection)
        event = next(events)
        same((event.type, event.error.code), ("error", "websocket_connection_limit_reached"), "the limit")
        same(read_turn(events)[-1].type, "response.completed", "the turn on the next connection")
    same(seen, [1001], "close codes")


@check("SDK with a wrong key is refused at the handshake")
def sdk_key(room):
    flags = ("--api-key", KEY, "--ttft-ms", "0", "--itl-ms", "0")
    with room.sdk(*flags).responses.connect() as connection:
        same(ask(connection)[-1].type, "response.completed", "with the right key")
    try:
        with room.sdk(*flags, key="sk-wrong").responses.connect():
            raise AssertionError("it was let in")
    except InvalidStatus as refused:
        same(refused.response.status_code, 401, "status")


# ---- the websockets package -------------------------------------------------------------------


@check("websockets: no extension is negotiated, pings are answered, the close is clean")
def ws_plain(room):
    with connect(room.url(), compression="deflate") as socket:
        same(list(socket.protocol.extensions), [], "extensions")
        socket.send(create())
        need(socket.ping(b"payload").wait(WAIT_S), "no pong")
        same(receive_turn(socket)[-1]["type"], "response.completed", "the turn")
    same((socket.protocol.close_rcvd.code, socket.protocol.close_sent.code), (1000, 1000), "close codes")


@check("websockets: a message in fragments, a big one, and one that is too big (1009)")
def ws_sizes(room):
    with connect(room.url("--ttft-ms", "0", "--itl-ms", "0", "--max-body-mb", "2"), max_size=None) as socket:
        text = create()
        socket.send(text[at : at + 7] for at in range(0, len(text), 7))
        same(receive_turn(socket)[-1]["type"], "response.completed", "the turn in fragments")
        socket.send(create(input="word " * 300000))
        need(receive_turn(socket)[-1]["response"]["usage"]["input_tokens"] > 300000, "the big one was cut")
        socket.send(create(input="word " * 500000))
        same(closed_with(socket), 1009, "close code")


@check("websockets: binary messages are not understood (1003)")
def ws_binary(room):
    with connect(room.url()) as socket:
        socket.send(create().encode())
        same(closed_with(socket), 1003, "close code")


@check("websockets: the server's pings are answered by the client, which then stays")
def ws_pings(room):
    with connect(room.url("--ttft-ms", "0", "--itl-ms", "0", "--websocket-ping-s", "0.2", "--websocket-idle-s", "2")) as socket:
        try:
            socket.recv(timeout=4)
            raise AssertionError("something came")
        except TimeoutError:
            pass
        socket.send(create())
        same(receive_turn(socket)[-1]["type"], "response.completed", "the turn")


@check("websockets: 30 asynchronous connections with turns and pings")
def ws_async(room):
    async def one(number):
        async with connect_async(room.url()) as socket:
            for _ in range(5):
                await socket.send(create(stream_id="lane-%d" % number))
                waiter = await socket.ping()
                while json.loads(await socket.recv())["type"] not in TERMINAL:
                    pass
                await waiter

    async def all_of_them():
        await asyncio.gather(*[one(number) for number in range(30)])

    asyncio.run(asyncio.wait_for(all_of_them(), WAIT_S))


@check("websockets over TLS")
def ws_tls(room):
    command = shutil.which("openssl")
    need(command, "there is no openssl command to make a certificate with")
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run([command, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", key, "-out", cert], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cert)
        url = room.url("--tls-cert", cert, "--tls-key", key, "--ttft-ms", "2", "--itl-ms", "1")
        with connect(url, ssl=context, max_size=None) as socket:
            for text in ("x", "word " * 50000):
                socket.send(create(input=text))
                same(receive_turn(socket)[-1]["type"], "response.completed", "the turn")


@check("websockets: a client that leaves in mid-turn cancels it; a stop closes with 1001")
def ws_ends(room):
    flags = ("--ttft-ms", "60000", "--itl-ms", "1")
    with connect(room.url(*flags)) as socket:
        socket.send(create())
        json.loads(socket.recv(timeout=WAIT_S))
    server = room.server(*flags)
    with connect(room.url(*flags)) as idle:
        server.process.send_signal(signal.SIGTERM)
        same(closed_with(idle), 1001, "close code")
    same(server.process.wait(WAIT_S), 0, "exit status")
    need("1 clients left early" in server.text(), "it has not noticed: " + server.text()[-300:])


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--server", default=os.path.join(here, "server.py"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", help="checks whose title holds this word")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the checks on both forms of the transport, print a line each, return the exit status."""
    options = parse_options(arguments)
    print("openai %s and websockets %s on Python %s" % (openai.__version__, websockets.__version__, sys.version.split()[0]))
    report = Report()
    for transport in ("loop", "threads"):
        room = Room(options, transport)
        try:
            for title, function in CHECKS:
                if options.only in title:
                    report.run("%s: %s" % (transport, title), function, room)
        finally:
            wrong = [text for server in room.servers.values() for text in server.stop()]
        report.tell("%s: every server ends with status 0 on SIGTERM and has logged no exception" % transport, "; ".join(wrong))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
