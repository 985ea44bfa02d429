"""The clock model: when each token of an answer is due.

In: a number of tokens and a source of draws. Out: a sequence of seconds since the request was
read. Constant times share one growing table between all requests; noise costs a draw per token.
"""
from random import Random


class ClockModel:
    """TTFT and ITL, constant or normal with a floor of 0.

    ttft_s, itl_s: means in seconds. ttft_std_s, itl_std_s: standard deviations; 0 is constant.
    """

    def __init__(self, ttft_s, itl_s, ttft_std_s=0.0, itl_std_s=0.0):
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.ttft_std_s = ttft_std_s
        self.itl_std_s = itl_std_s
        self._table = [ttft_s + itl_s * n for n in range(256)]

    def dues(self, count, digest):
        """Due times of `count` tokens: at least so many floats, non-decreasing.

        The first is TTFT, each later one an ITL after the one before. digest: bytes, the draws
        of equal digests are equal.
        """
        if not self.ttft_std_s and not self.itl_std_s:
            table = self._table
            if len(table) < count:
                # a new list: another thread may be reading the old one, and its owner keeps it
                table = [self.ttft_s + self.itl_s * n for n in range(2 * count)]
                if count <= 1 << 16:        # a giant answer does not make the table stay giant
                    self._table = table
            return table
        draw = Random(int.from_bytes(digest, "big"))
        due = max(0.0, draw.gauss(self.ttft_s, self.ttft_std_s))
        dues = [due]
        for _ in range(count - 1):
            due += max(0.0, draw.gauss(self.itl_s, self.itl_std_s))
            dues.append(due)
        return dues
