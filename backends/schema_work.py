"""What all of the schema modules count and draw with: a budget of work, and draws that are the same on every Python.

In: an amount, a `random.Random`. Out: WorkSpent when there was too much, a number or a choice. Any thread.
"""


class WorkSpent(Exception):
    """The budget of this call is used up."""


class WorkBudget:
    """Counts work, so that no schema and no pattern can take for ever."""

    __slots__ = ("left",)

    def __init__(self, left):
        self.left = left

    def spend(self, amount):
        self.left -= amount
        if self.left < 0:
            raise WorkSpent()


def draw_below(draw, count):
    """A number from 0 to count - 1. Only `random()` is used: its sequence is the same on every Python."""
    return min(int(draw.random() * count), count - 1) if count > 1 else 0


def pick_from(draw, choices):
    """One of a sequence."""
    return choices[draw_below(draw, len(choices))]
