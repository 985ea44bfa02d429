"""The Responses API over a WebSocket: messages in, turns one after the other, their events out.

A ResponsesSocket plays for the life of its connection, as a stream plays for the length of an answer:
the player alone sends on the socket, and hands what comes to it. Each turn is a play of its own whose
frames are carried by that one. All of it runs on the player's thread; long work goes to a worker.
Source: api-reference 11.7 and the newest SDK's responses.connect().
"""
import re
import threading
from collections import deque

from api_common import (ApiError, check_boolean, dump_json, invalid_value, missing_parameter, parse_body, server_error,
                        shown)
from state.contract import Store, item_response_id
from transport.websocket import (WS_CLOSE, WS_GOING_AWAY, WS_PING, WS_PONG, WS_POLICY, WS_SERVER_FAULT, WS_TEXT,
                                 WS_UNSUPPORTED, FrameParser, WebSocketError, check_close_payload, ws_close_frame,
                                 ws_frame)
from transport.workers import Breather

SOCKET_LANES = 32                   # distinct stream_ids of a connection (WebSocket mode guide)
SOCKET_TURNS_AT_ONCE = 16           # of all lanes together (the same)
SOCKET_MESSAGES_WAITING = 64        # then the client's bytes are left where they are
SOCKET_READS_AT_ONCE = 2            # of 64 KB, 0.3 ms each; then others have a turn
SOCKET_CLOSE_WAIT_S = 2.0           # for the client's close frame after ours

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


# ---- events -----------------------------------------------------------------------------------

def socket_error(error, lane=None):
    """An ApiError as the text frame of an `error` event. Source: api-reference 11.7: code is never null."""
    told = {"type": "error", "status": error.status}
    if lane is not None:
        told["stream_id"] = lane
    told["error"] = {"type": error.type, "code": error.code or error.type, "message": error.message,
                     "param": error.param}
    if error.headers:
        told["error"]["headers"] = {name: str(value) for name, value in error.headers}
    return ws_frame(WS_TEXT, dump_json(told))


class SocketMessage:
    """A text message. data: bytes. Once it is read: body dict, lane str or None, steers bool; or error."""

    __slots__ = ("data", "body", "lane", "error", "steers", "is_read")

    def __init__(self, data):
        self.data = data
        self.body = self.lane = self.error = None
        self.steers = self.is_read = False

    def read(self, breathe=None):
        """Decode it and find its lane; what is wrong becomes its error."""
        try:
            self._read(breathe)
        except ApiError as error:
            self.error = error
        self.is_read = True

    def _read(self, breathe):
        body = parse_body(self.data, breathe)
        lane = body.pop("stream_id", None)
        if lane is not None and (lane.__class__ is not str or not _STREAM_ID.match(lane)):
            raise ApiError(400, "The 'stream_id' must be a string of 1 to 256 letters, digits, underscores, hyphens "
                           "and periods.", code="invalid_stream_id", param="stream_id")
        self.lane = lane
        kind = body.pop("type", None)
        if kind is None:
            raise missing_parameter("type")
        self.steers = kind == "response.steer"
        if kind != "response.create" and not self.steers:
            raise invalid_value("type", "Invalid value for 'type': '%s'. Supported values are: 'response.create'."
                                % shown(kind))
        self.body = body


# ---- what a connection remembers --------------------------------------------------------------

class SocketRoom:
    """The bytes that all WebSockets of a server together may remember of `store: false` responses."""

    def __init__(self, max_bytes):
        self._left = max_bytes
        self._lock = threading.Lock()       # guards _left

    def take(self, size):
        """Whether there was room for so many."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size):
        with self._lock:
            self._left += size


class SocketMemory:
    """The `store: false` responses of one connection, gone with it.

    only_last: of each lane only the newest is known, as the service has it; else all.
    """

    def __init__(self, room, only_last):
        self._room = room
        self._only_last = only_last
        self._lock = threading.Lock()       # guards the rest; a worker may keep while the player looks
        self._nodes = {}                    # id -> (Node, lane)
        self._bytes = 0
        self._closed = False

    def get(self, id):
        found = self._nodes.get(id)
        return None if found is None else found[0]

    def all(self):
        with self._lock:
            return [node for node, _ in self._nodes.values()]

    def remember(self, node, lane):
        """Keep a node for its connection; without room it is not, and its id is unknown later."""
        if not self._room.take(node.size_bytes):
            return
        with self._lock:
            if not self._closed:
                self._bytes += node.size_bytes
                if self._only_last:
                    for id in [id for id, (_, its) in self._nodes.items() if its == lane]:
                        self._drop(id)
                self._nodes[node.id] = node, lane
                return
        self._room.give(node.size_bytes)    # its client left while it was being kept

    def _drop(self, id):
        node, _ = self._nodes.pop(id)
        self._bytes -= node.size_bytes
        self._room.give(node.size_bytes)

    def evict(self, id, lane):
        """Forget a node, unless another lane has made it: a fork that fails leaves its source alone."""
        with self._lock:
            found = self._nodes.get(id)
            if found is not None and found[1] == lane:
                self._drop(id)

    def close(self):
        with self._lock:
            self._closed = True
            self._nodes = {}
            size, self._bytes = self._bytes, 0
        self._room.give(size)


class SocketStore(Store):
    """The server's store as a turn on a WebSocket sees it: with what its connection remembers."""

    def __init__(self, store, memory, lane):
        self._store = store
        self._memory = memory
        self._lane = lane
        self.blocking = store.blocking

    def get(self, id):
        return self._memory.get(id) or self._store.get(id)

    def put(self, node, conversation=None):
        if not node.hidden or conversation is not None:
            self._store.put(node, conversation)
        if node.hidden:
            self._memory.remember(node, self._lane)

    def find_item(self, id):
        found = self._memory.get(item_response_id(id))
        for node in [found] if found is not None else [each for each in self._memory.all() if id in each.foreign_ids]:
            item = node.find_item(id)
            if item is not None:
                return item
        return self._store.find_item(id)

    def conversation(self, id):
        return self._store.conversation(id)

    def claim_conversation(self, id, owner):
        return self._store.claim_conversation(id, owner)

    def release_conversation(self, id, owner):
        self._store.release_conversation(id, owner)

    def running(self, id):
        return self._store.running(id)

    def flush(self):
        self._store.flush()


# ---- the connection ---------------------------------------------------------------------------

class SocketLane:
    """The wire of one turn's play: its frames go to the connection's, unless that is full.

    What it does not take, the turn's play keeps until ResponsesSocket says that there is room.
    """

    def __init__(self, player, carrier):
        self._player = player
        self._carrier = carrier

    def send(self, data):
        if self._carrier.rest:
            raise BlockingIOError("the client has to read first")
        self._player.write(self._carrier, data if data.__class__ is bytes else bytes(data))
        return len(data)


class ResponsesSocket:
    """The steps and the reader of the play that lasts as long as a WebSocket does.

    server: what server.MockTurtleServer offers. conn: the connection. head: of the handshake.
    rest: bytes that came behind it.
    """

    def __init__(self, server, conn, head, rest):
        self.head = head
        self.conn = conn
        self.play = None
        self.waiting = False        # the player's word for: follow() may be called
        self.memory = SocketMemory(server.socket_room, server.settings.strict)
        self._server = server
        self._settings = server.settings
        self._player = server.player
        self._now = server.clock.monotonic
        self._parser = FrameParser(server.max_body_bytes)
        self._rest = rest
        self._queue = deque()       # SocketMessages that wait for their turn
        self._queued_bytes = 0
        self._lanes = set()         # the stream_ids seen
        self._running = {}          # lane -> turn
        self._pong = None           # payload of the ping that is to be answered when the socket has room
        self._steers = 0            # events about steering that were sent
        self._closing = False       # a close frame is out, or on its way
        self._finished = False      # nothing more is said or listened to
        self._close_end_s = 0.0
        self._draining = False
        self._expired = False
        self._began_s = self._heard_s = self._pinged_s = self._now()

    # ---- what the player asks of a play's steps -----------------------------------------------

    def begin(self, play, clock):
        self.play = play
        self._player.readers[self] = None
        self._player.post(self._first)      # not from here: the handshake's answer is not out yet

    def __iter__(self):
        return self

    def __next__(self):
        """Called when all that was said is with the socket: those who waited for that go on."""
        play, player = self.play, self._player
        if self._pong is not None and not self._closing:
            payload, self._pong = self._pong, None
            player.write(play, ws_frame(WS_PONG, payload))
        for turn in list(self._running.values()):
            if turn.started and turn.play is not None and turn.play.rest and not play.rest:
                player.writable(turn.play)
        if self._finished and not play.rest:
            raise StopIteration
        self.waiting = True
        return float("inf"), b""

    def close(self):
        """The play is over."""
        self._player.readers.pop(self, None)
        self._closing = self._finished = True
        self._cancel_turns()
        self.memory.close()
        self.play = None                    # they held each other

    # ---- what the player asks of a reader -----------------------------------------------------

    def receive(self):
        """Bytes or the end have come."""
        self._guarded(self._receive)

    def sweep(self, now):
        """Once a second: what has a time limit."""
        self._guarded(lambda: self._sweep(now))

    def drain(self):
        self._draining = True
        self._guarded(self._end_idle)

    def hang_up(self):
        self._guarded(lambda: self._end(WS_GOING_AWAY, "the server stops", False))

    def left(self):
        """The client has gone."""
        self._closing = self._finished = True
        self._cancel_turns()

    def _guarded(self, step):
        if self.play is None or self.play.over:
            return
        try:
            step()
        except Exception:
            self._server.log_exception()
            self._end(WS_SERVER_FAULT, "the server had an error", False)

    # ---- bytes --------------------------------------------------------------------------------

    def _first(self):
        def step():
            rest, self._rest = self._rest, b""
            if self._player.draining:
                self._draining = True
                self._end_idle()
            elif rest:
                self._parser.feed(rest)
                self._take_messages()
        self._guarded(step)

    def _receive(self):
        for _ in range(SOCKET_READS_AT_ONCE):
            try:
                data = self.conn.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._player.gone(self.play)
                return
            if self._finished:
                continue                    # only what we said is still to go out
            self._heard_s = self._now()
            self._parser.feed(data)
            self._take_messages()
            if self.play is None or self.play.read_off:
                return

    def _take_messages(self):
        """Go through what has come, as far as there is room for it."""
        try:
            while not self._finished:
                if len(self._queue) >= SOCKET_MESSAGES_WAITING or self._queued_bytes > self._server.max_body_bytes:
                    self._player.set_reading(self.play, False)
                    return
                found = self._parser.next()
                if found is None:
                    return
                self._take(*found)
        except WebSocketError as error:
            self._end(error.code, error.reason, False)

    def _take(self, opcode, payload):
        if opcode == WS_CLOSE:
            code, _ = check_close_payload(payload)
            if not self._closing:
                self._closing = True
                self._cancel_turns()
                self._player.write(self.play, ws_close_frame(code))
            self._finish()
        elif self._closing:
            return                          # RFC 6455 5.5.1: what comes behind our close frame is not looked at
        elif opcode == WS_TEXT:
            self._take_text(payload)
        elif opcode == WS_PING:
            if self.play.rest:
                self._pong = payload        # RFC 6455 5.5.3: the newest is enough, so no flood is kept
            else:
                self._player.write(self.play, ws_frame(WS_PONG, payload))
        elif opcode != WS_PONG:
            raise WebSocketError(WS_UNSUPPORTED, "only text messages are understood")

    # ---- messages and turns -------------------------------------------------------------------

    def _take_text(self, data):
        message = SocketMessage(data)
        self._queue.append(message)
        self._queued_bytes += len(data)
        if len(data) <= self._settings.inline_body_bytes:
            message.read()
            self._read(message)
            return

        def job():
            try:
                message.read(Breather())
            except Exception:
                self._server.log_exception()
                message.error, message.is_read = server_error(), True
            self._player.post(lambda: self._guarded(lambda: self._read(message)))
        self._server.workers.submit(job)

    def _read(self, message):
        """A message is decoded."""
        if message not in self._queue:
            return                          # the connection ends
        if message.steers and message.error is None:
            self._unqueue(message)
            self._refuse_steer(message)
        elif message.lane is not None and message.lane not in self._lanes:
            if len(self._lanes) < SOCKET_LANES:
                self._lanes.add(message.lane)
            else:
                message.error = ApiError(
                    400, "This WebSocket connection has reached its maximum number of distinct stream IDs (%d). Reuse "
                    "an existing stream_id or open a new WebSocket connection." % SOCKET_LANES,
                    code="websocket_stream_limit_reached", param="stream_id")
        self._start_next()

    def _unqueue(self, message):
        self._queue.remove(message)
        self._queued_bytes -= len(message.data)

    def _start_next(self):
        """Begin one turn that may begin. Those of one lane never overlap, and none overtakes another."""
        if self._closing:
            return
        if self._draining or self._expired:
            self._end_idle()
            return
        passed = set()
        for message in self._queue:
            if not message.is_read or len(self._running) >= SOCKET_TURNS_AT_ONCE:
                break
            if message.lane in self._running or message.lane in passed:
                passed.add(message.lane)
                continue
            self._unqueue(message)
            if self._queue:
                self._later(self._start_next)       # others have a turn in between
            self._start(message)
            break
        if self.play is not None and self.play.read_off and len(self._queue) < SOCKET_MESSAGES_WAITING:
            self._player.set_reading(self.play, True)
            self._later(self._take_messages)

    def _later(self, step):
        self._player.post(lambda: self._guarded(step))

    def _start(self, message):
        turn = self._server.make_turn(self, message)
        self._running[message.lane] = turn
        if not turn.wants_worker():
            turn.answer_request()
            if not turn.moved:
                self._answered(turn)
                return
        turn.moved = True

        def job():
            turn.answer_request()

            def durable(error):
                if error is not None:
                    turn.unkept(error)
                self._player.post(lambda: self._answered_late(turn))
            return durable
        self._server.workers.submit(job)

    def _answered_late(self, turn):
        if not self._closing:
            self._guarded(lambda: self._answered(turn))
            return
        self._server.request_dropped(turn)
        if turn.play is not None and turn.play.on_gone is not None:
            turn.play.on_gone()             # nobody waits for it any more
        self._turn_over(turn, False)

    def _answered(self, turn):
        """A turn is validated: refused with an error, or ready to be played."""
        self._server.request_answered(turn)
        play = turn.play
        if play is None:
            self._player.write(self.play, turn.answer)
            self._turn_over(turn, True)
            return
        turn.started = True
        play.carried = True
        play.on_end = lambda play, whole: self._turn_over(turn, whole)
        self._player.start(play)
        job, turn.job = turn.job, None
        if job is not None:
            self._server.workers.submit_blocking(job)

    def _turn_over(self, turn, whole):
        self._running.pop(turn.lane, None)
        completion = turn.completion
        if turn.fault is not None or completion is not None and completion.fault is not None:
            # api-reference 11.7: a turn that fails evicts what it followed
            self.memory.evict(turn.previous_id, turn.lane)
            if completion is not None:
                self.memory.evict("resp_" + completion.assembler.tail, turn.lane)
        self._server.request_ended(turn, whole)
        if self._closing:
            return
        if not whole:                       # a fault of ours ended it: the client must hear of it
            self._player.write(self.play, socket_error(server_error(), turn.lane))
        self._later(self._start_next)

    def _cancel_turns(self):
        """Nobody waits for the running turns any more, nor for those that were to come."""
        self._queue.clear()
        self._queued_bytes = 0
        for turn in list(self._running.values()):
            if turn.started and turn.play is not None:
                self._player.gone(turn.play)

    def _refuse_steer(self, message):
        """Steering is not simulated: the input goes back, as the service does where it is not supported."""
        id = message.body.get("previous_response_id")
        active = any(turn.completion is not None and "resp_" + turn.completion.assembler.tail == id
                     for turn in self._running.values())
        error = {"type": "invalid_request_error", "code": "steering_not_supported",
                 "message": "Steering is not simulated here."}
        if not active:
            error.update(code="response_not_found", message="No response with id '%s' is in progress on this "
                         "connection." % shown(id))
        self._player.write(self.play, ws_frame(WS_TEXT, dump_json({
            "type": "response.steer.failed", "sequence_number": self._steers, "error": error,
            "steer": {"previous_response_id": id, "input": message.body.get("input")}})))
        self._steers += 1

    # ---- ends ---------------------------------------------------------------------------------

    def _sweep(self, now):
        settings = self._settings
        if self._closing:
            if now >= self._close_end_s:
                self._finish()
            return
        if now - self._began_s >= settings.websocket_max_s and not self._expired:
            self._expired = True
            self._end_idle()
            return
        silent_s = now - self._heard_s
        if self._parser.in_message() and silent_s > settings.body_timeout_s and not self.play.read_off:
            self._end(WS_POLICY, "the message was not complete in time", False)
        elif silent_s > settings.websocket_idle_s and not self._running and not self._queue:
            self._end(WS_GOING_AWAY, "idle for too long")
        elif settings.websocket_ping_s and not self.play.rest \
                and min(silent_s, now - self._pinged_s) >= settings.websocket_ping_s:
            self._pinged_s = now
            self._player.write(self.play, ws_frame(WS_PING))

    def _end_idle(self):
        """No turn begins any more; when none runs, the connection ends."""
        if self._running or self._closing:
            return
        if self._expired:
            self._player.write(self.play, socket_error(ApiError(
                400, "Responses websocket connection limit reached (%g minutes). Create a new websocket connection to "
                "continue." % (self._settings.websocket_max_s / 60), code="websocket_connection_limit_reached")))
            self._end(WS_GOING_AWAY, "connection limit reached")
        else:
            self._end(WS_GOING_AWAY, "the server stops")

    def _end(self, code, reason, polite=True):
        """Say goodbye. polite: the client's close frame is waited for."""
        if not self._closing:
            self._closing = True
            self._close_end_s = self._now() + SOCKET_CLOSE_WAIT_S
            self._cancel_turns()
            self._player.write(self.play, ws_close_frame(code, reason))
        if not polite:
            self._finish()

    def _finish(self):
        """The play ends when all that was said is out."""
        self._finished = True
        if self.play is not None:
            self._player.follow(self.play)


def read_socket_turn(body, strict, checks):
    """Take out of a message's body what only HTTP or only a WebSocket knows; whether it asks for output.

    Raises ApiError. Source: api-reference 11.7; `stream` is implicit, and Codex sends it all the same.
    """
    for name in ("stream", "stream_options", "background"):
        value = body.pop(name, None)
        if value is None:
            continue
        checks[name](value, name)
        if name == "background" and value:
            raise ApiError(400, "Background responses are not supported over a WebSocket.",
                           code="unsupported_parameter", param="background")
        if name == "stream" and not value and strict:
            raise ApiError(400, "Responses are always streamed over a WebSocket: 'stream' must not be false.",
                           code="unsupported_parameter", param="stream")
    generate = body.pop("generate", None)
    if generate is not None:
        check_boolean(generate, "generate")
    return generate is not False
