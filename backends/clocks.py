"""From settings and a profile to the clock model, the engine and the lengths that they describe.

A flag (or variable, or config key) that was given weighs more than the profile, and the profile more
than the defaults. All times leave here in seconds, with --time-scale laid on them.
"""
from backends.engine import LOAD_CURVE_OFF, Engine, LoadCurve, knee_curve
from backends.latency import MOST_TIME, ClockModel, flag_distribution, read_distribution


class Simulation:
    """What a SimulatedBackend is made of. clock: ClockModel. engine: Engine, or None where neither queue nor
    load is simulated. lengths: Distribution of output tokens. Raises ValueError."""

    def __init__(self, settings, profile=None):
        """profile: a profile's dict (see README), or None."""
        self._settings = settings
        self._profile = profile or {}
        self._unit = 0.001 * settings.time_scale
        self.lengths = self._distribution("output-tokens", "output_tokens", settings.output_tokens_dist, 1.0)
        self.engine = self._make_engine()
        prefill = [self._number(name, settings) * self._unit
                   for name in ("prefill_overhead_ms", "prefill_ms_per_token")]
        if not max(prefill) < MOST_TIME:
            raise ValueError("--prefill-overhead-ms and --prefill-ms-per-token must be less than %g" % MOST_TIME)
        self.clock = ClockModel(
            self._ttft(any(prefill)), self._distribution("itl", "itl_ms", settings.itl_dist, self._unit),
            *prefill, levels=self._levels(), busy=self.engine.busy if self.engine is not None else None)

    def words(self):
        """What an idle engine takes, as it is: for the log."""
        clock = self.clock
        return "TTFT %s, ITL %g ms, %g output tokens" % (
            " + ".join(["%g ms%s" % (1000 * seconds, each) for seconds, each in (
                (clock.ttft.mean + clock.prefill_s(0), ""), (clock.prefill_s(1) - clock.prefill_s(0), " a prompt token"))
                if seconds or not each]), 1000 * clock.itl.mean, self.lengths.mean)

    def _given(self, *names):
        return any(name in vars(self._settings) for name in names)

    def _number(self, name, settings):
        value = getattr(settings, name)
        return value if self._given(name) else self._profile.get(name, value)

    def _ttft(self, has_prefill):
        """TTFT's own draw: around nothing, where it is made of the prefill and nobody said more."""
        mean = 0.0 if has_prefill and not self._given("ttft_ms") else self._settings.ttft_ms
        return self._distribution("ttft", "ttft_ms", self._settings.ttft_dist, self._unit, mean)

    def _distribution(self, flag, name, text, unit, mean=None):
        """The Distribution that the flags --FLAG-ms, --FLAG-std-ms and --FLAG-dist describe, or the profile; of the
        profile remains what no flag says. mean: in place of the setting's."""
        settings = self._settings
        std_name = name.replace("_ms", "") + ("_std_ms" if name.endswith("_ms") else "_std")
        dist_name = flag.replace("-", "_") + "_dist"
        mean, std, per_request = getattr(settings, name) if mean is None else mean, getattr(settings, std_name), False
        if name in self._profile:
            found = read_distribution(self._profile[name], name)
            if not self._given(name, std_name, dist_name):
                return found.scaled(unit)
            if not self._given(name):
                mean, per_request = found.mean, found.per_request
                if not self._given(std_name):
                    std = found.std
                elif not self._given(dist_name) and found.kind in ("lognormal", "gamma"):
                    text = found.kind
        dist = flag_distribution(flag + "-dist", text, mean, std, unit)
        dist.per_request = per_request
        return dist

    def _make_engine(self):
        settings, profile = self._settings, self._profile
        most = int(self._number("max_num_seqs", settings))
        load = profile.get("load") or {}
        if self._given("load_factor"):
            if most < 2:
                raise ValueError("--load-factor needs --max-num-seqs of 2 or more: the batch that it describes")
            try:
                prefill = decode = knee_curve(settings.load_factor, settings.load_knee, most)
            except ValueError as exc:
                raise ValueError("--load-factor %g with --load-knee %g: %s" % (
                    settings.load_factor, settings.load_knee, exc))
        else:
            prefill, decode = (LoadCurve(load.get(name) or LOAD_CURVE_OFF) for name in ("ttft", "itl"))
        if self._given("max_waiting") and not most:
            raise ValueError("--max-waiting needs --max-num-seqs: nobody waits while any number may run")
        self._curves = prefill, decode
        if not most and prefill.is_flat() and decode.is_flat() and not profile.get("levels") \
                and not settings.cache_blocks:
            return None
        return Engine(most, settings.max_waiting if settings.max_waiting >= 0 else None, prefill, decode)

    def _levels(self):
        """The profile's levels on an idle engine's scale, unless flags say the times or what load makes of them."""
        levels = self._profile.get("levels")
        if not levels or self._given("ttft_ms", "ttft_std_ms", "ttft_dist", "itl_ms", "itl_std_ms", "itl_dist",
                                         "load_factor"):
            return None
        prefill, decode = self._curves
        found = []
        for number, level in enumerate(levels):
            running = level["running"]
            found.append((running, *(
                read_distribution(level[name], "levels[%d].%s" % (number, name), self._unit / curve.factor(running))
                for name, curve in (("ttft_ms", prefill), ("itl_ms", decode)))))
        return found
