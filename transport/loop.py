"""The loop: one thread that accepts, reads, answers what cannot block, and paces.

In: listening sockets. Out: requests to handlers, their answers to the player or the socket. A
connection has one owner at a time: the loop, a worker (busy), or the player (play). Others leave a
job in the inbox.
"""
import errno
import socket
from collections import deque

from api_common import ApiError
from transport.http1 import CONTINUE_LINE
from transport.player import Play
from transport.poller import POLL_ENDED, POLL_READ, POLL_WRITE, Wire
from transport.relay import UpstreamWire

READ_BYTES = 65536
ACCEPT_AT_ONCE = 128
ANSWERS_AT_ONCE = 16                # made before they are sent, see _send_answers: under 1 ms
LINGER_S = 2.0                      # how long a closing connection is read, so that its last
LINGER_BYTES = 4 << 20              # answer is not lost to a reset; and how much of it
_LOOP_FOREVER = float("inf")
_LOOP_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(Wire):
    """A client's connection, and where it stands."""

    __slots__ = ("parser", "play", "busy", "left", "lingering", "deadline_s", "address", "started",
                 "keep", "unread", "cut")

    def __init__(self, sock, address, parser):
        Wire.__init__(self, sock)
        self.address = address
        self.parser = parser
        self.play = None            # the answer that the player is writing
        self.busy = False           # a worker has the request
        self.left = False           # the client closed while it was busy
        self.lingering = -1         # bytes read since our last word; -1: not closing
        self.deadline_s = 0.0
        self.keep = True            # go on after the answer that is being written
        self.unread = b""           # bytes that peek() had to take, see transport/tls.py
        self.started = False        # of a request that is not complete, something has come
        self.cut = False            # a fault ends it: without another word

    can_refuse = True           # before a TLS handshake nothing can be said

    def finish_sending(self):
        """End our side; the client's is read on."""
        self.sock.shutdown(socket.SHUT_WR)


class ListeningWire:
    """A listening socket in the poller's eyes."""

    def __init__(self, sock):
        self.sock = sock
        self.fd = sock.fileno()


class Loop:
    """server: what server.MockTurtleServer offers (settings, make_handler, log, metrics...).

    run() returns when a drain is over. post(job) is for any thread.
    """

    def __init__(self, server, listeners, poller, player, waker, workers):
        self._server = server
        self._settings = server.settings
        self._now = server.clock.monotonic
        self._poller = poller
        self._player = player
        self._waker = waker
        self._workers = workers
        self._inbox = deque()
        self._outbox = []           # (connection, handler) whose answers are made but not sent
        self._ready = deque()       # connections with a pipelined request to look at
        self._listeners = [ListeningWire(sock) for sock in listeners]
        self.connections = {}       # Connection -> None
        self._heads = {}            # cache of parsed heads, for all parsers
        self._accept_again_s = _LOOP_FOREVER
        self._told_full = False
        self._closing = 0           # connections that only linger
        self._drain_s = None        # monotonic end of the drain, once it has begun

    # ---- any thread ---------------------------------------------------------------------------

    def post(self, job):
        """Run job() on the loop's thread."""
        self._inbox.append(job)
        self._waker.wake()

    def begin_drain(self, seconds):
        """No new connections; run() returns when the running answers are over, or after this."""
        self.post(lambda: self._begin_drain(seconds))

    # ---- the loop's thread --------------------------------------------------------------------

    def run(self):
        for listener in self._listeners:
            self._poller.watch(listener, POLL_READ)
        self._poller.watch(self._waker, POLL_READ)
        player, now, inbox, ready = self._player, self._now, self._inbox, self._ready
        sweep_s = now() + 1.0
        more = False
        while True:
            if more or inbox or ready:
                timeout_s = 0.0
            else:
                due_s = player.next_due_s()
                until = sweep_s if due_s is None or due_s > sweep_s else due_s
                if self._drain_s is not None and self._drain_s < until:
                    until = self._drain_s
                timeout_s = max(0.0, until - now())
            events = self._waker.poll_awake(self._poller, timeout_s, inbox)
            for wire, mask in events:
                try:
                    self._event(wire, mask)
                except Exception:
                    self._fault(wire)
                # requests must not make frames late: each may take some tens of us
                due_s = player.next_due_s()
                if due_s is not None and due_s <= now():
                    player.tick()
            if self._outbox:
                self._send_answers()
            for _ in range(len(inbox)):
                try:
                    inbox.popleft()()
                except Exception:
                    self._fault(None)
            for _ in range(len(ready)):
                conn = ready.popleft()
                try:
                    self._read(conn, b"")
                except Exception:
                    self._fault(conn)
            if self._outbox:
                self._send_answers()
            more = player.tick()
            if now() >= sweep_s:
                sweep_s = now() + 1.0
                self._sweep(now())
            if self._drain_s is not None and self._drained(now()):
                break
        self._close_all()

    def _fault(self, wire):
        """Inside an except block: a fault in a step of the loop costs the one connection, not the server."""
        self._server.log_exception()
        if wire in self.connections and wire.play is None:
            self._drop(wire)

    def _event(self, wire, mask):
        kind = wire.__class__
        if kind is UpstreamWire:
            self._player.relay.event(wire, mask)
            return
        if kind is ListeningWire:
            self._accept(wire)
            return
        play = wire.play
        if play is not None:
            if mask & POLL_WRITE and play.rest:
                self._player.writable(play)
            if mask & ~POLL_WRITE:
                self._player.readable(play, mask)
        elif wire.busy:
            self._busy_event(wire, mask)
        elif mask & ~POLL_WRITE and wire in self.connections:
            self._receive(wire)

    def _accept(self, listener):
        settings = self._settings
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in _LOOP_NO_DESCRIPTORS:
                    self._pause_accepting(exc)
                    return
                continue            # that one client gave up before it was accepted
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                conn = self._server.make_connection(sock, address, self._heads)
            except OSError:
                sock.close()        # it was reset before we came to it
                continue
            self.connections[conn] = None
            conn.deadline_s = self._now() + settings.idle_timeout_s
            self._poller.watch(conn, POLL_READ)
            self._server.metrics.add("connections")
            if 0 < settings.max_connections < len(self.connections) - self._closing:
                if not conn.can_refuse:
                    self._drop(conn)
                    continue
                self._refuse(conn, ApiError(503, "Too many connections.", type="server_error",
                                            code="server_overloaded",
                                            headers=[("retry-after", "1")], close=True))

    def _pause_accepting(self, exc):
        """Out of descriptors: leave new clients in the backlog for a while, and say so once."""
        if not self._told_full:
            self._told_full = True
            self._server.log("warning", "cannot accept more connections: %s; %d are open. New clients wait."
                             % (exc, len(self.connections)))
        for listener in self._listeners:
            self._poller.forget(listener)
        self._accept_again_s = self._now() + 0.2

    def _receive(self, conn):
        try:
            data = conn.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(conn)
        elif conn.lingering >= 0:
            conn.lingering += len(data)
            if conn.lingering > LINGER_BYTES:
                self._drop(conn)
        else:
            self._read(conn, data)

    def _read(self, conn, data):
        """Give bytes to the parser; b"" looks at what was pipelined."""
        parser = conn.parser
        if conn not in self.connections or conn.play is not None or conn.busy or parser is None:
            return
        if conn.unread:
            data, conn.unread = conn.unread + data, b""
        try:
            request = parser.feed(data)
        except ApiError as error:
            self._refuse(conn, error)
            return
        if request is not None:
            self._handle(conn, request)
            return
        if parser.wants_continue:
            parser.wants_continue = False
            try:
                conn.send(CONTINUE_LINE)
            except OSError:
                self._drop(conn)
                return
        if parser.has_more:
            self._ready.append(conn)
        settings = self._settings
        if parser.in_body():
            conn.started = True
            conn.deadline_s = self._now() + settings.body_timeout_s
        elif not parser.is_idle() and not conn.started:
            conn.started = True
            conn.deadline_s = self._now() + settings.header_timeout_s

    def _handle(self, conn, request):
        conn.started = False
        handler = self._server.make_handler(conn, request)
        if handler.wants_worker():
            handler.moved = True
        else:
            handler.answer_request()
            if not handler.moved:
                self._deliver(conn, handler)
                return
        conn.busy = True
        conn.deadline_s = _LOOP_FOREVER

        def job():
            if not conn.left:       # else nobody waits for it
                handler.answer_request()

            def durable(error):
                if error is not None:
                    handler.unkept(error)
                self.post(lambda: self._deliver_late(conn, handler))
            return durable
        self._workers.submit(job)

    def idle_s(self):
        """For each connection without a request, how long that has been so. Any thread."""
        began_s = self._now() + self._settings.idle_timeout_s
        return [began_s - conn.deadline_s for conn in list(self.connections)
                if conn.play is None and not conn.busy and conn.lingering < 0 and not conn.started]

    def _refuse(self, conn, error):
        """Answer a request that could not be read, and end the connection."""
        self._deliver(conn, self._server.make_refusal(conn, error))

    def _busy_event(self, conn, mask):
        """A client's word while a worker has its request: it left, or it pipelines."""
        if mask & POLL_ENDED:
            conn.left = True
            self._poller.forget(conn)
            return
        try:
            data = conn.peek()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            conn.left = True
            self._poller.forget(conn)
        else:
            self._poller.watch(conn, 0)

    def _deliver_late(self, conn, handler):
        conn.busy = False
        if conn.left:
            self._server.request_dropped(handler)
            if handler.play is not None and handler.play.on_gone is not None:
                handler.play.on_gone()
            self._drop(conn)
            return
        self._poller.watch(conn, POLL_READ)
        self._deliver(conn, handler)

    def _deliver(self, conn, handler):
        """Send a handler's answer: bytes now, or a play that the player takes over."""
        self._server.request_answered(handler)
        conn.keep = handler.keep_alive
        if handler.play is None:
            conn.busy = True            # until it is sent
            self._outbox.append((conn, handler))
            if len(self._outbox) >= ANSWERS_AT_ONCE:
                self._send_answers()
        else:
            self._start(conn, handler, handler.play)

    def _send_answers(self):
        """Send the answers that were made since the last look at the sockets, in one go.

        A send that wakes a sleeping client costs some 10 us more than one to a client that is awake:
        behind each other most are of the second kind.
        """
        outbox, self._outbox = self._outbox, []
        for conn, handler in outbox:
            conn.busy = False
            if conn not in self.connections:
                continue
            data = handler.answer
            try:
                sent = conn.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(conn)
                continue
            if sent == len(data):
                self._server.request_ended(handler, True)
                self._answered(conn)
                continue
            play = Play(conn, self._now(), iter(()), timed=False)
            play.frame = data[sent:]
            play.owner = handler
            self._start(conn, handler, play)

    def _start(self, conn, handler, play):
        conn.play = play
        conn.deadline_s = _LOOP_FOREVER
        play.on_end = self._play_ended
        self._player.start(play)
        if handler.job is not None:
            self._workers.submit_blocking(handler.job)

    def _play_ended(self, play, whole):
        conn = play.wire
        conn.play = None
        owner, play.owner = play.owner, None
        if not owner.keep_alive:    # an error from a blocking backend may have said so since
            conn.keep = False
        self._server.request_ended(owner, whole)
        if whole:
            self._answered(conn)
        else:
            self._drop(conn)

    def _answered(self, conn):
        """The answer is out: wait for the next request, or close."""
        if not conn.keep or self._drain_s is not None:
            self._close_softly(conn)
            return
        conn.deadline_s = self._now() + self._settings.idle_timeout_s
        if conn.unread or not conn.parser.is_idle():
            self._ready.append(conn)        # not from here: a pipeline must not recurse

    def _close_softly(self, conn):
        """End our side, then read what the client still sends: closing with unread bytes would
        reset the connection, and the reset may overtake our answer."""
        conn.lingering = 0
        self._closing += 1
        conn.parser = None
        conn.deadline_s = self._now() + LINGER_S
        try:
            conn.finish_sending()
        except OSError:
            self._drop(conn)

    def _drop(self, conn):
        if self.connections.pop(conn, 0) is None:
            self._closing -= conn.lingering >= 0
            self._poller.forget(conn)
            conn.close()

    def _sweep(self, now):
        self._player.sweep(now)
        self._server.sweep_store()
        if now >= self._accept_again_s and self._drain_s is None:
            self._accept_again_s = _LOOP_FOREVER
            for listener in self._listeners:
                self._poller.watch(listener, POLL_READ)
        for conn in [conn for conn in self.connections if conn.deadline_s < now and not conn.busy]:
            if conn.lingering >= 0 or not conn.started:
                self._drop(conn)
            else:
                self._refuse(conn, ApiError(408, "The request was not complete in time.", close=True))

    # ---- the end ------------------------------------------------------------------------------

    def _begin_drain(self, seconds):
        if self._drain_s is not None:
            self._drain_s = min(self._drain_s, self._now() + seconds)
            return
        self._drain_s = self._now() + seconds
        self._accept_again_s = _LOOP_FOREVER
        for listener in self._listeners:
            self._poller.forget(listener)
            listener.sock.close()           # else new clients would wait in the backlog for nothing
        for conn in list(self.connections):
            if conn.play is None and not conn.busy and conn.lingering < 0:
                self._drop(conn)
        self._player.drain()

    def _drained(self, now):
        return now >= self._drain_s or not any(
            conn.play is not None or conn.busy for conn in self.connections)

    def _close_all(self):
        self._player.hang_up()
        for conn in list(self.connections):
            if conn.play is not None:
                self._player.gone(conn.play)
            self._drop(conn)
        if self._player.relay is not None:
            self._player.relay.close()
