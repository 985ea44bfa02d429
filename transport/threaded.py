"""The plain form: a thread per connection, for platforms where the loop cannot run.

The thread reads with waits and answers short requests itself; timed answers are played by the
pacer's thread while this one waits for their end. Same parser, handler and player as the loop.
"""
import select
import socket
import threading
import time

from api_common import ApiError
from transport.http1 import CONTINUE_LINE
from transport.loop import LINGER_BYTES, LINGER_S, READ_BYTES


def wait_for_socket(sock, for_write, timeout_s):
    """True when a socket can be read (or written) within the time."""
    if hasattr(select, "poll"):             # knows descriptors above 1,023
        poll = select.poll()
        poll.register(sock, select.POLLOUT if for_write else select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    ready = select.select([] if for_write else [sock], [sock] if for_write else [], [], timeout_s)
    return bool(ready[0] or ready[1])


class ConnectionThreads:
    """Serves accepted connections, each on the thread that calls serve().

    server: as in loop.Loop. pacer: transport.player.PacerThread. workers: for blocking backends.
    """

    def __init__(self, server, pacer, workers):
        self._server = server
        self._settings = server.settings
        self._pacer = pacer
        self._workers = workers
        self._heads = {}
        self._lock = threading.Lock()       # guards connections
        self.connections = {}
        self._draining = False
        self._drain_end_s = float("inf")

    def serve(self, sock, address):
        """One connection, from its first byte to its end."""
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conn = self._server.make_connection(sock, address, self._heads)
        except OSError:
            sock.close()                    # it was reset before we came to it
            return
        with self._lock:
            self.connections[conn] = None
            full = 0 < self._settings.max_connections < len(self.connections)
        self._server.metrics.add("connections")
        try:
            if full:
                self._deliver(conn, self._server.make_refusal(conn, ApiError(
                    503, "Too many connections.", type="server_error", code="server_overloaded",
                    headers=[("retry-after", "1")], close=True)))
            while conn.keep and not self._draining:
                try:
                    request = self._read(conn)
                except ApiError as error:
                    handler = self._server.make_refusal(conn, error)
                else:
                    if request is None:
                        return
                    handler = self._server.make_handler(conn, request)
                    handler.moved = handler.wants_worker()
                    handler.answer_request()
                    if handler.moved:
                        handler.answer_request()    # this thread is its worker
                    error = self._server.flush_store()
                    if error is not None:
                        handler.unkept(error)
                self._deliver(conn, handler)
            if not conn.cut:
                self._linger(conn)
        except OSError:
            return                          # the client has gone: a normal end
        except Exception:
            self._server.log_exception()    # a fault costs the one connection
        finally:
            with self._lock:
                self.connections.pop(conn, None)
            conn.close()

    def _read(self, conn):
        """The next request, or None at the end. Raises ApiError for one that cannot be read."""
        settings, parser = self._settings, conn.parser
        data, conn.unread = conn.unread, b""
        request = parser.feed(data)
        started_s = None
        while request is None:
            if parser.has_more:
                request = parser.feed(b"")
                continue
            if parser.wants_continue:
                parser.wants_continue = False
                self._send(conn, CONTINUE_LINE)
            if parser.in_body():
                timeout_s = settings.body_timeout_s
            elif parser.is_idle():
                timeout_s = settings.idle_timeout_s
            else:
                if started_s is None:
                    started_s = time.monotonic()
                timeout_s = max(0.0, started_s + settings.header_timeout_s - time.monotonic())
            conn.started = not parser.is_idle()
            if not wait_for_socket(conn.sock, False, timeout_s):
                if not conn.started:
                    return None
                raise ApiError(408, "The request was not complete in time.", close=True)
            try:
                data = conn.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not data or self._draining:
                return None
            request = parser.feed(data)
        conn.busy = True
        return request

    def _deliver(self, conn, handler):
        self._server.request_answered(handler)
        conn.keep = handler.keep_alive
        play = handler.play
        if play is None:
            self._send(conn, handler.answer)
            self._server.request_ended(handler, True)
        else:
            over = threading.Event()

            def ended(play, whole):
                self._pacer.unwatch(conn)
                conn.play = None
                play.owner = None
                conn.keep = conn.keep and whole
                self._server.request_ended(handler, whole)
                over.set()

            def begin():
                conn.play = play
                self._pacer.watch(conn)
                self._pacer.player.start(play)
                if handler.job is not None:
                    self._workers.submit_blocking(handler.job)
            play.on_end = ended
            self._pacer.post(begin)
            over.wait()
        conn.busy = False
        conn.deadline_s = time.monotonic() + self._settings.idle_timeout_s

    def idle_s(self):
        """For each connection that has had an answer and has no request now, how long that has been so. Any thread."""
        began_s = time.monotonic() + self._settings.idle_timeout_s
        with self._lock:
            return [began_s - conn.deadline_s for conn in self.connections if not conn.busy and conn.deadline_s]

    def _send(self, conn, data):
        """All of it, or OSError when the client takes nothing for too long."""
        while data:
            try:
                data = data[conn.send(data):]
            except BlockingIOError:
                if not wait_for_socket(conn.sock, True, self._settings.send_timeout_s):
                    raise TimeoutError("the client takes no bytes")

    def _linger(self, conn):
        """See Loop._close_softly."""
        conn.finish_sending()
        end_s, seen = time.monotonic() + LINGER_S, 0
        while seen <= LINGER_BYTES:
            if not wait_for_socket(conn.sock, False, max(0.0, end_s - time.monotonic())):
                return
            try:
                data = conn.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return
            seen += len(data)

    def limit_drain(self, seconds):
        """No new requests; running answers may go on for so long from now. A shorter word wins. Any thread."""
        self._draining = True
        self._drain_end_s = min(self._drain_end_s, time.monotonic() + seconds)
        self._pacer.post(self._pacer.player.drain)

    def drain(self):
        """Close idle connections, wait for running answers, then end those too."""
        while self._shut_idle() and time.monotonic() < self._drain_end_s:
            time.sleep(0.02)
        told = threading.Event()

        def hang_up():
            self._pacer.player.hang_up()
            told.set()
        self._pacer.post(hang_up)
        told.wait(1.0)
        with self._lock:
            for conn in self.connections:
                self._shut(conn)
        gone_s = time.monotonic() + 2.0         # their threads end when the pacer has seen it
        while self.connections and time.monotonic() < gone_s:
            time.sleep(0.01)

    def _shut_idle(self):
        """End the connections that have no request; whether others run."""
        with self._lock:
            for conn in self.connections:
                if not conn.busy:
                    self._shut(conn)
            return any(conn.busy for conn in self.connections)

    def _shut(self, conn):
        try:
            conn.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return                          # gone already
