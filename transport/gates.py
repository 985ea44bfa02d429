"""Gates: answers wait at one until somebody opens it, and whoever wants to know is told when one is reached.

Gates come into being when they are named first, by an answer that reaches them or by who opens them. A gate that was
opened stays open until it is shut or all is reset. Any thread; waiters are woken through the player.
"""
import threading
from collections import OrderedDict
from time import monotonic

from transport.player import PushedSteps, Step

GATES_KEPT = 1000                   # names that are remembered; the oldest at which nobody waits go first


class Gate:
    """name; opened; reached: how many answers ever came to it; waiting: {FaultySteps: what is told of it}."""

    __slots__ = ("name", "opened", "reached", "waiting", "watchers")

    def __init__(self, name):
        self.name = name
        self.opened = False
        self.reached = 0
        self.waiting = {}
        self.watchers = []          # called, and forgotten, when an answer reaches it

    def report(self, now):
        return {"object": "gate", "name": self.name, "opened": self.opened, "reached": self.reached,
                "waiting": [dict(told, waiting_s=round(max(0.0, now - since_s), 3))
                            for told, since_s in self.waiting.values()]}


class Gates:
    """All gates of a server. timeout_s: how long an answer waits at most."""

    def __init__(self, timeout_s=30.0, now=monotonic):
        self.timeout_s = timeout_s
        self._now = now
        self._gates = OrderedDict()
        self._changed = threading.Condition()       # guards all gates

    def _gate(self, name):
        gate = self._gates.get(name)
        if gate is None:
            if len(self._gates) >= GATES_KEPT:
                idle = next((each for each in self._gates.values() if not each.waiting and not each.watchers), None)
                if idle is not None:
                    del self._gates[idle.name]
            gate = self._gates[name] = Gate(name)
        return gate

    def reach(self, name, waiter, told):
        """An answer has come to a gate: True when it may go on. Else waiter.wake() is called once it may.

        told: dict that describes the answer in reports.
        """
        with self._changed:
            gate = self._gate(name)
            gate.reached += 1
            if not gate.opened:
                gate.waiting[waiter] = told, self._now()
            opened, watchers, gate.watchers = gate.opened, gate.watchers, []
            self._changed.notify_all()
        for watcher in watchers:
            watcher()
        return opened

    def holds(self, name, waiter):
        """Whether an answer that reached a gate still has to wait there."""
        with self._changed:
            gate = self._gates.get(name)
            return gate is not None and waiter in gate.waiting

    def leave(self, name, waiter):
        """An answer waits no more: its time is over, or its client has left."""
        with self._changed:
            gate = self._gates.get(name)
            if gate is not None:
                gate.waiting.pop(waiter, None)
                self._changed.notify_all()

    def open(self, name):
        """Let all pass that wait and that come. Returns how many waited."""
        with self._changed:
            gate = self._gate(name)
            gate.opened = True
            waiting, gate.waiting = list(gate.waiting), {}
            self._changed.notify_all()
        for waiter in waiting:
            waiter.wake()
        return len(waiting)

    def shut(self, name):
        """Who comes from now on waits."""
        with self._changed:
            self._gate(name).opened = False

    def clear(self):
        """Forget all gates; who waits at one goes on."""
        with self._changed:
            gates, self._gates = list(self._gates.values()), OrderedDict()
            waiting = [waiter for gate in gates for waiter in gate.waiting]
            watchers = [watcher for gate in gates for watcher in gate.watchers]
            self._changed.notify_all()
        for waiter in waiting:
            waiter.wake()
        for watcher in watchers:
            watcher()

    def reached(self, name):
        """How many answers have come to it so far."""
        with self._changed:
            gate = self._gates.get(name)
            return 0 if gate is None else gate.reached

    def wait(self, name, timeout_s=10.0, count=1):
        """Block this thread until `count` answers have reached a gate; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: name in self._gates and self._gates[name].reached >= count, timeout_s)

    def watch(self, name, watcher):
        """Call watcher(), on any thread, when an answer reaches the gate; once."""
        with self._changed:
            self._gate(name).watchers.append(watcher)

    def unwatch(self, name, watcher):
        with self._changed:
            gate = self._gates.get(name)
            if gate is not None and watcher in gate.watchers:
                gate.watchers.remove(watcher)

    def report(self, name=None):
        """What is known of one gate, or of all as a list."""
        with self._changed:
            now = self._now()
            if name is not None:
                return (self._gates.get(name) or Gate(name)).report(now)
            return [gate.report(now) for gate in self._gates.values()]


class GateWatchSteps(PushedSteps):
    """The steps of an answer about a gate, given when enough answers have reached it, or when its time is over.

    render(): the answer's bytes. player: whose thread this runs on.
    """

    def __init__(self, gates, name, count, wait_s, render, player):
        PushedSteps.__init__(self, None, 0.0, 0.0, b"")
        self._gates = gates
        self._name = name
        self._count_wanted = count
        self._wait_s = wait_s
        self._render = render
        self._player = player
        self._given = False

    def close(self):
        self._gates.unwatch(self._name, self._wake)
        PushedSteps.close(self)

    def _wake(self):
        play = self.play
        if play is not None:
            self._player.come_back(play)

    def __next__(self):
        if self._given:
            raise StopIteration
        self.waiting = False
        if self._now_s() < self._wait_s:
            self._gates.unwatch(self._name, self._wake)
            self._gates.watch(self._name, self._wake)       # before the look: none is missed
            if self._gates.reached(self._name) < self._count_wanted:
                self.waiting = True
                return self._wait_s, Step(_no_bytes)
        self._given = True
        return 0.0, Step(self._render)


def _no_bytes():
    return b""
