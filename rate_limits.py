"""Rate limits as the public service has them: requests and tokens a minute, in buckets that fill steadily.

A bucket holds a minute's worth and fills at its rate all the time. A request takes 1 from one, and what it may at most
cost from the other; what it did not use is given back at its end. Any thread.
Source: api-reference 1.3 and 2.2; the service's guide to rate limits.
"""
import threading
from collections import OrderedDict

from api_common import ApiError
from faults import retry_headers

LIMITED_CLIENTS = 10000             # whose buckets are kept; the least recently seen begins anew
RATE_WINDOW_S = 60.0
LIMITED_METHODS = frozenset(("chat_create", "completions_create", "responses_create", "responses_turn",
                             "responses_compact", "embeddings_create"))


def duration_text(seconds):
    """Seconds as the service writes them: "20ms", "1s", "6m0s", "1h0m0s"; "0s" for none."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds <= 0:
        return "0s"
    if milliseconds < 1000:
        return "%dms" % milliseconds
    whole, rest = divmod(milliseconds, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    told = "%d.%03d" % (whole, rest)
    text = told.rstrip("0").rstrip(".") + "s"
    if hours:
        return "%dh%dm%s" % (hours, minutes, text)
    return "%dm%s" % (minutes, text) if minutes else text


class Bucket:
    """capacity: a window's worth. window_s: how long an empty one takes to fill."""

    __slots__ = ("capacity", "window_s", "_level", "_at_s")

    def __init__(self, capacity, window_s, now):
        self.capacity = float(capacity)
        self.window_s = window_s
        self._level = self.capacity
        self._at_s = now

    def level(self, now):
        if now > self._at_s:
            self._level = min(self.capacity, self._level + (now - self._at_s) * self.capacity / self.window_s)
            self._at_s = now
        return self._level

    def wait_s(self, amount, now):
        """Seconds until it holds so much; 0 when it does."""
        return max(0.0, (amount - self.level(now)) * self.window_s / self.capacity)

    def take(self, amount, now):
        """A negative amount gives back."""
        self._level = min(self.capacity, self.level(now) - amount)

    def reset_s(self, now):
        """Seconds until it is full."""
        return self.wait_s(self.capacity, now)


class _Client:
    __slots__ = ("requests", "tokens")


class Reservation:
    """What a request has taken from a client's tokens. settle() once."""

    __slots__ = ("limits", "key", "tokens")

    def __init__(self, limits, key, tokens):
        self.limits = limits
        self.key = key
        self.tokens = tokens

    def settle(self, used):
        """The request is over: so many tokens were used."""
        tokens, self.tokens = self.tokens, None
        if tokens is not None:
            self.limits.give_back(self.key, tokens - used)


class RateLimits:
    """requests_per_minute, tokens_per_minute: 0 for no limit. now: the monotonic clock. scale: of time."""

    def __init__(self, requests_per_minute, tokens_per_minute, now, scale=1.0):
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._now = now
        self._window_s = RATE_WINDOW_S * scale
        self._clients = OrderedDict()
        self._lock = threading.Lock()       # guards _clients and what is in them

    def _client(self, key):
        client = self._clients.pop(key, None)
        if client is None:
            now = self._now()
            client = _Client()
            client.requests = Bucket(self._requests, self._window_s, now) if self._requests else None
            client.tokens = Bucket(self._tokens, self._window_s, now) if self._tokens else None
            if len(self._clients) >= LIMITED_CLIENTS:
                self._clients.popitem(last=False)
        self._clients[key] = client
        return client

    def take_request(self, key):
        """Raises ApiError 429 when a client has no request left."""
        if not self._requests:
            return
        with self._lock:
            bucket, now = self._client(key).requests, self._now()
            wait_s = bucket.wait_s(1, now)
            if wait_s <= 0:
                bucket.take(1, now)
                return
        raise _limit_reached("requests", self._requests, self._requests, 1, wait_s)

    def reserve(self, key, tokens):
        """A Reservation of so many tokens. Raises ApiError 429."""
        if not self._tokens:
            return Reservation(self, key, 0)
        with self._lock:
            bucket, now = self._client(key).tokens, self._now()
            if tokens > bucket.capacity:
                raise ApiError(429, "The request is too large for the limit of %d tokens per minute: it needs %d (its "
                               "prompt and the longest answer that it allows). Make either smaller."
                               % (self._tokens, tokens), type="tokens", code="rate_limit_exceeded",
                               headers=[("x-should-retry", "false")])
            wait_s = bucket.wait_s(tokens, now)
            used = bucket.capacity - bucket.level(now)
            if wait_s <= 0:
                bucket.take(tokens, now)
                return Reservation(self, key, tokens)
        raise _limit_reached("tokens", self._tokens, used, tokens, wait_s)

    def give_back(self, key, tokens):
        if self._tokens:
            with self._lock:
                self._client(key).tokens.take(-tokens, self._now())

    def headers(self, key):
        """The x-ratelimit-* headers as they stand for a client, as [(name, value)]."""
        found = []
        with self._lock:
            client, now = self._client(key), self._now()
            for name, bucket in (("requests", client.requests), ("tokens", client.tokens)):
                if bucket is not None:
                    found += [("x-ratelimit-limit-" + name, int(bucket.capacity)),
                              ("x-ratelimit-remaining-" + name, max(0, int(bucket.level(now)))),
                              ("x-ratelimit-reset-" + name, duration_text(bucket.reset_s(now)))]
        return found

    def clear(self):
        """Every client begins anew."""
        with self._lock:
            self._clients.clear()


def _limit_reached(name, limit, used, requested, wait_s):
    return ApiError(429, "Rate limit reached for %s per minute: limit %d, used %d, requested %d. Please try again in %s."
                    % (name, limit, used, requested, duration_text(wait_s)), type=name, code="rate_limit_exceeded",
                    headers=retry_headers(wait_s))
