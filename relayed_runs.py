"""Completions whose deltas come from another server's socket, read on the player's thread.

In: a Completion and its play; deltas as the relay reads them. Out: frames pushed to the play, and word to the relay when
its client is slow.
"""
from transport.player import Aside
from transport.relay import RELAY_AHEAD_BYTES


class RelayedRun:
    """A completion whose deltas come from a socket: the relay's listener.

    begin() and what it calls run on a worker; start() and all that follows on the player's thread.
    """

    def __init__(self, completion, play, player, render, streamed):
        self._completion = completion
        self._play = play
        self._steps = play.push
        self._player = player
        self._render = render
        self._streamed = streamed
        self._attempt = 0
        self._wire = None
        self._ahead = 0             # bytes given to the play since it had nothing left
        self._said = []             # when the tokens of a plain answer came, seconds

    def begin(self):
        completion, player, play = self._completion, self._player, self._play
        assembler, cancel = completion.assembler, completion.cancel
        assembler.quiet = not self._streamed
        play.timed = False              # another server keeps the time, or does not
        opening = assembler.begin()
        if opening:
            player.push(play, 0.0, Aside(opening))
        self._connect(lambda: completion.backend.open(completion.request, cancel))

    def _connect(self, opened):
        """Have an exchange opened, and read it on the player's thread."""
        try:
            if self._completion.cancel.is_set():    # while it waited for a thread
                return
            exchange = opened()
        except BaseException as exc:
            error = self._completion.as_error(exc)
            self._player.post(lambda: self.fail(error))
            return
        if exchange is not None:
            self._player.post(lambda: self.start(exchange))

    def start(self, exchange):
        if self._play.over or self._completion.cancel.is_set():
            exchange.close()
            return
        self._wire = self._player.relay.start(exchange, self)
        self._steps.on_empty = self._emptied
        self._completion.cancel.on_cancel(lambda: self._player.post(self.drop))

    def drop(self):
        if self._wire is not None:      # else it is being connected again, and will see the cancel
            self._player.relay.drop(self._wire)

    # ---- what the relay says ------------------------------------------------------------------

    def take(self, deltas):
        completion = self._completion
        assembler, record = completion.assembler, completion.record
        pushed = False
        for delta in deltas:
            if record is not None:
                record.append((None, delta))
            frame = assembler.feed(delta)
            if assembler.failed is not None:
                break
            says = completion.says(delta)
            if not self._streamed:
                if says:
                    self._said.append(completion.elapsed_s())
            elif frame:
                self._steps.add(None, frame if says else Aside(frame))
                self._ahead += len(frame)
                pushed = True
        if pushed:
            self._follow()
        if assembler.failed is not None:
            self.fail(assembler.failed)

    def _follow(self):
        self._player.follow(self._play)
        if self._ahead > RELAY_AHEAD_BYTES and self._wire is not None:
            self._player.relay.pause(self._wire)

    def _emptied(self):
        """The play has taken all that there was."""
        self._ahead = 0
        if self._wire is not None and self._wire.paused:
            self._player.relay.resume(self._wire)

    def end(self):
        completion = self._completion
        if self._steps.closed:
            return                      # it has failed
        if completion.cancel.is_set():
            self._close()
            return
        if not self._streamed:
            completion.note_plain(self._said)
        step = completion.finish_step() if self._streamed else completion.plain_end(self._render)
        self._steps.add(None, step)
        self._close()

    def fail(self, error):
        completion, steps = self._completion, self._steps
        if steps.closed:
            return
        error = completion.as_error(error)
        steps.failure = completion.fail_step(steps, self._render, error, self._streamed)
        if self._wire is not None:
            self._player.relay.drop(self._wire)
        self._close()

    def retry(self, exchange):
        """The connection ended before any answer: once more, on a worker."""
        completion = self._completion
        self._attempt += not exchange.reused
        self._wire = None
        self._player.relay.elsewhere(lambda: self._connect(lambda: completion.backend.reopen(
            exchange, completion.request, completion.cancel, self._attempt)))

    def _close(self):
        self._steps.on_empty = None
        self._steps.closed = True
        self._player.follow(self._play)
