"""The relay: answers of other servers, read on the player's thread and passed on as they come.

In: exchanges whose request was sent (backends/upstream_exchange.py), each with a listener. Out: deltas to the listeners.
Everything here runs on the thread that owns the player, so hundreds of streams hold no thread, and one owner
writes each client's socket.
"""
from transport.poller import POLL_READ

RELAY_AHEAD_BYTES = 1 << 18         # frames that may wait for a slow client before its upstream is read no more


class UpstreamWire:
    """An exchange's connection in the poller's eyes. touched_s: when something came last, or reading began."""

    __slots__ = ("sock", "fd", "exchange", "listener", "touched_s", "paused")

    def __init__(self, exchange, listener, now):
        self.sock = exchange.sock
        self.fd = exchange.fd
        self.exchange = exchange
        self.listener = listener
        self.touched_s = now
        self.paused = False


class Relay:
    """poller: the one of the thread that calls event(). post(job): runs it on that thread. elsewhere(job): runs
    what may wait on a worker.

    A listener has take(deltas), end(), fail(error), called inside an except block unless it is an ApiError, and
    retry(exchange); after any of the last three it hears no more.
    """

    def __init__(self, poller, now, post, elsewhere):
        self._poller = poller
        self._now = now
        self._post = post
        self.elsewhere = elsewhere
        self.wires = {}             # UpstreamWire -> None: all that are read, or waited for

    def start(self, exchange, listener):
        """Read the exchange from here on; the wire, for pause(), resume() and drop()."""
        wire = UpstreamWire(exchange, listener, self._now())
        self.wires[wire] = None
        self._poller.watch(wire, POLL_READ)
        if hasattr(wire.sock, "pending"):
            self._post(lambda: self.event(wire))    # TLS may have decrypted the answer's first bytes already
        return wire

    def event(self, wire, mask=POLL_READ):
        """Something came."""
        if wire not in self.wires or wire.paused:
            return
        exchange, listener = wire.exchange, wire.listener
        over = exchange.over
        try:
            deltas = exchange.read()
        except Exception as exc:
            self._broken(wire, exc)
            return
        wire.touched_s = self._now()
        if not over:
            self._tell(wire, listener, deltas)
        if exchange.settled:
            self._forget(wire)

    def _tell(self, wire, listener, deltas):
        try:
            if deltas:
                listener.take(deltas)
            if wire.exchange.over:
                wire.listener = None
                listener.end()
        except Exception as exc:
            wire.listener = None
            self._forget(wire, True)
            listener.fail(exc)

    def _broken(self, wire, exc):
        listener, wire.listener = wire.listener, None
        self._forget(wire, True)
        if listener is None:
            return
        if getattr(exc, "fresh", False):
            listener.retry(wire.exchange)
        else:
            listener.fail(exc)

    def _forget(self, wire, close=False):
        if self.wires.pop(wire, 0) is None and not wire.paused:
            self._poller.forget(wire)
        if close:
            wire.exchange.close()

    def drop(self, wire):
        """Nobody wants the answer any more: the upstream is hung up on."""
        wire.listener = None
        if wire in self.wires:
            self._forget(wire, True)

    def pause(self, wire):
        """The client is slow: leave the upstream's bytes where they are."""
        if not wire.paused and wire in self.wires:
            wire.paused = True
            self._poller.forget(wire)

    def resume(self, wire):
        """The client has taken what there was. Not from within a listener's take()."""
        if wire.paused and wire in self.wires:
            wire.paused = False
            wire.touched_s = self._now()
            self._poller.watch(wire, POLL_READ)
            if hasattr(wire.sock, "pending"):
                self._post(lambda: self.event(wire))

    def sweep(self, now):
        """Once a second: end what has said nothing for too long."""
        for wire in [wire for wire in self.wires if not wire.paused and now - wire.touched_s > wire.exchange.wait_s]:
            exchange, listener = wire.exchange, wire.listener
            wire.listener = None
            error = exchange.timed_out()
            self._forget_closed(wire)
            if listener is None:
                continue
            if error is not None:
                listener.fail(error)
            else:
                wire.listener = listener
                self._tell(wire, listener, exchange.finish_late())

    def _forget_closed(self, wire):
        self.wires.pop(wire, None)
        self._poller.forget(wire)

    def close(self):
        for wire in list(self.wires):
            self._forget(wire, True)
