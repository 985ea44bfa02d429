"""All settings in one class, filled from flags, environment and a file, in this order of weight.

A setting has one name: `--ttft-ms`, MOCKTURTLE_TTFT_MS, "ttft-ms" in the file, Settings(ttft_ms=...).
Its unit is in the name; a bad value is a ValueError here, before any socket is bound.
"""
import argparse
import json
import os
import time

from api_common import FIXED_CREATED, __version__
from backends.texts import TEXT_FILE_PREFIX, TEXT_MODES
from faults import read_faults

ENVIRONMENT_PREFIX = "MOCKTURTLE_"

_SIMULATED_ALONE = (
    "profile", "calibrate", "ttft_ms", "ttft_std_ms", "ttft_dist", "itl_ms", "itl_std_ms", "itl_dist", "output_tokens",
    "output_tokens_std", "output_tokens_dist", "prefill_overhead_ms", "prefill_ms_per_token", "cache_blocks",
    "cache_block_tokens", "max_num_seqs", "max_waiting", "load_factor", "load_knee", "text", "seed", "auto_tool_rate",
    "builtin_tool_rate", "refusal_rate")


class Settings:
    """Every setting with its default. Settings(port=8000, ttft_ms=0) in Python; the flags of
    the command line have the same names with dashes."""

    host = ()                       # addresses to listen on; () is 127.0.0.1 and, where it is, ::1
    port = 8000                     # 0: any free one
    model = ("mock-model",)         # what /v1/models lists
    strict_models = False           # other names are refused
    strict = False                  # the public service's own rules: unknown parameters are 400
    refuse_ignored = False          # a field that would be accepted and not acted on is 400
    api_key = ()                    # accepted keys; () takes any and none
    tls_cert = ""                   # PEM file: serve https
    tls_key = ""                    # PEM file of its key, when it is not in the same file
    backend = "simulated"           # or upstream, replay, or FILE.py:Class
    record = ""                     # a folder: every exchange is written there
    replay = ""                     # the folder that the replay backend plays
    replay_speed = 1.0              # of the recorded times; 0: all at once
    replay_match = "normalised"     # or exact: nothing volatile is passed over
    replay_fallback = ""            # simulated: what answers requests without a recording
    upstream_url = ()               # [MODEL=]URL of servers that the upstream backend asks
    upstream_api_key_env = ()       # [MODEL=]NAME of the variables with their keys
    upstream_forward_key = False    # the client's own Authorization goes upstream
    model_map = ()                  # CLIENTS=UPSTREAMS: a model's two names
    upstream_ca = ""                # PEM file of the authorities that https upstreams are checked against
    upstream_connect_timeout_s = 10.0
    upstream_read_timeout_s = 300.0     # without a byte from an upstream that is to answer
    upstream_retries = 2            # further attempts while nothing of an answer has come
    upstream_no_stream = False      # never ask for a stream
    upstream_system_role = "system"     # or developer: of instructions
    upstream_max_tokens_field = "max_tokens"    # or max_completion_tokens: of max_output_tokens
    upstream_reasoning_field = ""   # what earlier reasoning goes back as, in assistant messages
    upstream_think = "off"          # tags: <think> at an answer's beginning is reasoning; opened: the tag is left out
    upstream_drop = ()              # fields that are never sent
    script = ()                     # files of rules that answer, or aimock:FILE; the first that matches
    script_only = False             # what no rule answers is an error
    log_level = "info"              # debug, info (a line a request), warning, error
    log_format = "text"             # or json
    log_bodies = False              # request bodies in the log, at level debug
    allow_host = ()                 # names beside the loopback's under which it may be asked
    cors_origin = ()                # allowed origins; () echoes every origin, ("none",) is off
    profile = ""                    # a built-in latency profile's name, or a file's, FILE.json
    calibrate = ()                  # result files of load tools, from which a profile is made
    ttft_ms = 150.0                 # time to first token, mean
    ttft_std_ms = 0.0
    ttft_dist = "normal"            # constant, normal, lognormal, gamma, uniform or empirical:FILE
    itl_ms = 10.0                   # inter-token latency, mean
    itl_std_ms = 0.0
    itl_dist = "normal"
    output_tokens = 128             # tokens of an answer that nothing else limits, mean
    output_tokens_std = 0.0
    tokenizer = "approx"            # or tiktoken:NAME, or FILE: a rank file or a tokenizer.json
    tokenizer_fetch_s = 0.0         # time for tiktoken to fetch a file that is not cached; 0 forbids it
    output_tokens_dist = "normal"
    prefill_overhead_ms = 0.0       # on top of TTFT
    prefill_ms_per_token = 0.0      # on top of TTFT, for each prompt token that no cache holds
    cache_blocks = 0                # blocks of the prefix cache; 0 is off
    cache_block_tokens = 16         # tokens of one
    max_num_seqs = 0                # choices that run at once, the rest queue; 0: any number
    max_waiting = -1                # requests that may queue, more get 429; -1: any number
    load_factor = 1.0               # how much slower a full batch is than a single request
    load_knee = 0.5                 # share of a full batch beyond which it gets slower faster
    time_scale = 1.0                # all simulated times, heartbeats and the commit grace are multiplied with it
    text = "prose"                  # what is said: of TEXT_MODES, or file:PATH
    max_model_len = 1048576         # context length in tokens: what is longer is refused
    seed = 0                        # of all draws
    auto_tool_rate = None           # how often tool_choice auto calls a tool; None: when the message points at one
    builtin_tool_rate = 0.0         # how often tool_choice auto calls each built-in tool
    refusal_rate = 0.0              # how often an answer is a refusal
    fault = ()                      # what goes wrong: kind:key=value,...
    gate_timeout_s = 30.0           # how long an answer waits at a gate
    requests_per_minute = 0         # of a client, more get 429; 0: any number
    tokens_per_minute = 0           # of a client, likewise
    journal = 0                     # requests that /_mockturtle/requests can tell of; 0 is off
    fixed_ids = False               # ids count up and `created` stands still
    store = "memory"                # or sqlite:PATH
    store_sync = "normal"           # full: what was answered survives the machine's power loss as well
    no_compact = False              # /responses/compact answers as for a model that cannot
    max_background = 1000           # background responses in progress at once
    max_responses = 10000           # stored responses; the least recently used go first
    max_store_mb = 256.0            # bytes of all stored responses
    store_ttl_s = 86400.0           # age at which a stored response goes
    heartbeat_s = 1.0               # an SSE comment whenever nothing was due for so long; 0 is off
    heartbeat_form = "comment"      # or event: one that clients see
    commit_grace_s = 10.0           # a blocking backend's status line goes out after this
    drain_s = 3.0                   # how long running answers may go on after a stop signal
    transport = "loop"              # loop: one thread for all that cannot block; threads: one each
    max_connections = 0             # more get a 503; 0: as many as the system's file limit allows
    max_body_mb = 64.0
    header_timeout_s = 20.0         # from a request's first byte to the end of its head
    body_timeout_s = 60.0           # without a byte of the body
    idle_timeout_s = 300.0          # a kept-alive connection without a request
    send_timeout_s = 60.0           # a client that takes no byte
    websocket_max_s = 3600.0        # age at which a WebSocket ends: no turn begins any more
    websocket_idle_s = 900.0        # a WebSocket without a turn from which nothing comes, not even a pong
    websocket_ping_s = 30.0         # a ping after so long without a byte from the client; 0 is off
    inline_body_bytes = 20000       # a bigger body is read on a worker: it would stop the clock
    timing_trace = ""               # a file of JSON lines, or "memory": planned and actual time of every frame
    lateness_warning_ms = 20.0      # p99 of the frames' lateness over this: a warning at the end

    def __init__(self, **values):
        for name, value in values.items():
            if name not in setting_names():
                raise ValueError("unknown setting '%s'" % name)
            if getattr(Settings, name).__class__ is tuple and value.__class__ is str:
                value = (value,)
            setattr(self, name, value)
        self.started = FIXED_CREATED if self.fixed_ids else int(time.time())
        self._check()
        if self.time_scale != 1.0:      # the same frames in the same order, only faster
            self.heartbeat_s *= self.time_scale
            self.commit_grace_s *= self.time_scale

    def guarded(self):
        """Whether what this server keeps or reaches is worth a guard against pages in a browser."""
        return (self.store != "memory" or self.backend in ("upstream", "replay") or self.record != "") and not self.api_key

    def without_effect(self):
        """The flags that were given and that only the simulated model would hear of, where there is none."""
        if self.backend == "upstream" or self.backend == "replay" and not self.replay_fallback:
            return ["--" + name.replace("_", "-") for name in _SIMULATED_ALONE
                    if getattr(self, name) != getattr(Settings, name)]
        return []

    def _check(self):
        for name in setting_names():
            default, value = getattr(Settings, name), getattr(self, name)
            if default.__class__ in (int, float) or (default is None and value is not None):
                if value.__class__ not in (int, float):
                    raise ValueError("--%s must be a number, not %r" % (name.replace("_", "-"), value))
        for name in ("ttft_ms", "ttft_std_ms", "itl_ms", "itl_std_ms", "output_tokens_std",
                     "heartbeat_s", "drain_s", "commit_grace_s", "max_connections", "lateness_warning_ms",
                     "websocket_ping_s", "prefill_overhead_ms", "prefill_ms_per_token", "max_num_seqs",
                     "cache_blocks", "tokenizer_fetch_s", "upstream_retries", "requests_per_minute", "tokens_per_minute",
                     "replay_speed"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError("--%s must be 0 or more" % name.replace("_", "-"))
        for name in ("output_tokens", "max_responses", "max_store_mb", "store_ttl_s", "max_body_mb",
                     "header_timeout_s", "body_timeout_s", "max_background", "idle_timeout_s", "send_timeout_s", "max_model_len",
                     "websocket_max_s", "websocket_idle_s", "load_factor", "time_scale", "cache_block_tokens",
                     "upstream_connect_timeout_s", "upstream_read_timeout_s", "gate_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError("--%s must be more than 0" % name.replace("_", "-"))
        for name in ("auto_tool_rate", "builtin_tool_rate", "refusal_rate"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ValueError("--%s must be from 0 to 1" % name.replace("_", "-"))
        if 0 < self.heartbeat_s < 0.001:
            raise ValueError("--heartbeat-s must be 0, or 0.001 or more")
        if not 0 < self.load_knee < 1:
            raise ValueError("--load-knee must be between 0 and 1")
        if not -1 <= self.max_waiting < float("inf"):
            raise ValueError("--max-waiting must be 0 or more, or -1 for any number")
        if not 0 <= self.port <= 65535:
            raise ValueError("--port must be from 0 to 65535")
        file = self.text[len(TEXT_FILE_PREFIX):] if self.text.startswith(TEXT_FILE_PREFIX) else ""
        if self.text not in TEXT_MODES and not file:
            raise ValueError("--text must be file:PATH or one of %s" % ", ".join(TEXT_MODES))
        if self.transport not in ("loop", "threads"):
            raise ValueError("--transport must be loop or threads")
        if self.log_level not in LOG_LEVELS:
            raise ValueError("--log-level must be one of %s" % ", ".join(LOG_LEVELS))
        if self.heartbeat_form not in ("comment", "event"):
            raise ValueError("--heartbeat-form must be comment or event")
        if not 0 <= self.journal <= 100000:
            raise ValueError("--journal must be from 0 to 100000")
        if self.log_format not in ("text", "json"):
            raise ValueError("--log-format must be text or json")
        if self.tls_key and not self.tls_cert:
            raise ValueError("--tls-key needs --tls-cert")
        if self.store != "memory" and not (self.store.startswith("sqlite:") and self.store != "sqlite:"):
            raise ValueError("--store must be memory or sqlite:PATH")
        if self.store_sync not in ("normal", "full"):
            raise ValueError("--store-sync must be normal or full")
        for spec in self.fault:
            try:
                read_faults(spec, standing=True)
            except ValueError as exc:
                raise ValueError("--fault: %s" % exc)
        if not self.tokenizer:
            raise ValueError("--tokenizer must be approx, tiktoken:NAME or a file")
        if self.profile and self.calibrate:
            raise ValueError("--profile and --calibrate both say how fast the model is: give one of them")
        if not self.model:
            raise ValueError("--model must name at least one model")
        self._check_upstream()
        self._check_replay()

    def _check_upstream(self):
        if self.backend == "upstream" and not self.upstream_url:
            raise ValueError("--backend upstream needs --upstream-url")
        if not self.upstream_retries <= 10:
            raise ValueError("--upstream-retries must be at most 10")
        for spec in self.model_map:
            name, equals, there = spec.partition("=")
            if not (name and equals and there):
                raise ValueError("--model-map %s: expected CLIENTS=UPSTREAMS" % spec)
        for name, choices in (("upstream_system_role", ("system", "developer")),
                              ("upstream_max_tokens_field", ("max_tokens", "max_completion_tokens")),
                              ("upstream_reasoning_field", ("", "reasoning_content", "reasoning")),
                              ("upstream_think", ("off", "tags", "opened"))):
            if getattr(self, name) not in choices:
                raise ValueError("--%s must be %s" % (name.replace("_", "-"), " or ".join(filter(None, choices))))


    def _check_replay(self):
        if self.backend == "replay" and not self.replay:
            raise ValueError("--backend replay needs --replay DIR")
        if self.record and self.replay and os.path.abspath(self.record) == os.path.abspath(self.replay):
            raise ValueError("--record and --replay must name two folders")
        if self.replay_match not in ("normalised", "exact"):
            raise ValueError("--replay-match must be normalised or exact")
        if self.replay_fallback not in ("", "simulated"):
            raise ValueError("--replay-fallback must be simulated")


# What stands between the values of a repeated setting in the environment, where it is no comma.
_SETTINGS_SEPARATORS = {"fault": ";"}


def setting_names():
    """The names of all settings, as attributes."""
    return [name for name, value in vars(Settings).items()
            if not name.startswith("_") and not callable(value)]


def read_setting(name, value, where):
    """A value from the file (any JSON) or the environment (str) in its setting's type.

    Repeated settings are lists in the file and comma-separated in the environment.
    Raises ValueError that says where the value stood and what is expected.
    """
    default = getattr(Settings, name)
    kind = float if default is None else default.__class__
    text = value.__class__ is str
    if kind is tuple:
        if text and where.startswith(ENVIRONMENT_PREFIX):
            return tuple(part.strip() for part in value.split(_SETTINGS_SEPARATORS.get(name, ",")) if part.strip())
        values = [value] if text else value
        if values.__class__ is list and all(each.__class__ is str for each in values):
            return tuple(values)
        raise ValueError("%s: expected a string or a list of strings" % where)
    if kind is bool:
        if value.__class__ is bool:
            return value
        if text and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off", ""):
            return value.lower() in ("1", "true", "yes", "on")
        raise ValueError("%s: expected true or false, not %r" % (where, value))
    if kind is str:
        if text:
            return value
    elif value.__class__ is not bool and (text or value.__class__ in (int, float)):
        try:
            return kind(value) if text or kind is float or value == int(value) else kind("no integer")
        except (ValueError, OverflowError):
            pass                # said below, in one place
    raise ValueError("%s: expected %s, not %r" % (
        where, {int: "an integer", float: "a number", str: "a string"}[kind], value))


def read_environment(environ):
    """{setting: value} of all MOCKTURTLE_* variables but MOCKTURTLE_CONFIG."""
    found = {}
    for variable, value in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable != ENVIRONMENT_PREFIX + "CONFIG":
            name = variable[len(ENVIRONMENT_PREFIX):].lower()
            if name not in setting_names():
                raise ValueError("unknown environment variable %s" % variable)
            found[name] = read_setting(name, value, variable)
    return found


def read_config(path):
    """{setting: value} of a JSON file. Keys may be spelled with dashes or underscores."""
    try:
        with open(path, encoding="utf-8") as config:
            values = json.load(config)
    except OSError as exc:
        raise ValueError("cannot read %s: %s" % (path, exc.strerror or exc))
    except (ValueError, RecursionError) as exc:
        raise ValueError("%s is not JSON: %s" % (path, exc))
    if values.__class__ is not dict:
        raise ValueError("%s must hold a JSON object" % path)
    found = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in setting_names():
            raise ValueError("%s: unknown key '%s'" % (path, json.dumps(key)[1:-1]))
        found[name] = read_setting(name, value, "%s: '%s'" % (path, key))
    return found


LOG_LEVELS = ("debug", "info", "warning", "error")


class _SettingsParser(argparse.ArgumentParser):
    """One clear line on stderr and exit code 2, without the usage in front."""

    def error(self, message):
        self.exit(2, "mockturtle: error: %s (--help lists the flags)\n" % message)


# (group, [(flag, metavar, help)]): the type and default come from Settings
_SETTINGS_FLAGS = (
    ("listening", (
        ("host", "ADDRESS", "address to listen on, repeatable (default: 127.0.0.1 and ::1)"),
        ("port", "N", "port; 0 takes a free one"),
        ("tls-cert", "FILE", "PEM certificate (chain): serve https"),
        ("tls-key", "FILE", "PEM key, when it is not in the certificate's file"),
        ("api-key", "KEY", "accept only this key, repeatable (default: any key, or none)"),
        ("cors-origin", "ORIGIN", "allow this browser origin, repeatable; 'none' for no CORS "
                                  "(default: every origin; none with a store on disk, an upstream or recordings, and no key)"),
        ("allow-host", "NAME", "with a store on disk, an upstream or recordings, and no key: answer requests for this Host "
                               "as well, repeatable"),
    )),
    ("what is simulated", (
        ("backend", "NAME", "simulated, upstream, replay, or FILE.py:Class for a backend of your own"),
        ("script", "FILE", "rules that answer, JSON with comments, repeatable; aimock:FILE for aimock's fixtures"),
        ("script-only", None, "404 for a request that no rule answers, in place of the simulated reply"),
        ("model", "NAME", "model that /v1/models lists, repeatable; any name is answered"),
        ("tokenizer", "NAME", "what counts tokens: approx; FILE, a .tiktoken rank file or a tokenizer.json (byte-level "
                              "BPE); tiktoken:NAME, an encoding of that library"),
        ("tokenizer-fetch-s", "S", "time for tiktoken to fetch a file that is not in its cache; 0 forbids it"),
        ("max-model-len", "N", "context length in tokens; what is longer is refused"),
        ("strict-models", None, "refuse the names of other models"),
        ("profile", "NAME", "latency profile: a built-in one, or FILE.json; 'list' shows the built-in ones. Flags "
                            "like --ttft-ms weigh more than what is in it"),
        ("calibrate", "FILE", "make the profile from a result file of GuideLLM, AIPerf or vllm bench serve; "
                              "repeatable, as for several concurrencies"),
        ("ttft-ms", "MS", "time to first token, mean"),
        ("ttft-std-ms", "MS", "its standard deviation"),
        ("ttft-dist", "KIND", "constant, normal, lognormal, gamma, uniform, or empirical:FILE of measured ms"),
        ("itl-ms", "MS", "inter-token latency, mean"),
        ("itl-std-ms", "MS", "its standard deviation"),
        ("itl-dist", "KIND", "as --ttft-dist"),
        ("output-tokens", "N", "tokens of an answer that no limit cuts, mean"),
        ("output-tokens-std", "N", "their standard deviation"),
        ("output-tokens-dist", "KIND", "as --ttft-dist"),
        ("prefill-overhead-ms", "MS", "added to TTFT, which is 0 then unless --ttft-ms says otherwise"),
        ("prefill-ms-per-token", "MS", "added to TTFT for each prompt token that no cache holds, likewise"),
        ("cache-blocks", "N", "size of the prefix cache in blocks; 0 is none"),
        ("cache-block-tokens", "N", "tokens of a block"),
        ("max-num-seqs", "N", "choices that run at once; the rest queue, first come first served; 0 is any number"),
        ("max-waiting", "N", "requests that may queue; more get 429; -1 is any number"),
        ("load-factor", "X", "prefill and ITL of a full batch (--max-num-seqs) over those of a single request"),
        ("load-knee", "SHARE", "share of a full batch up to which it costs a fifth of that"),
        ("time-scale", "X", "multiply all simulated times, heartbeats and the commit grace: 0.01 is a hundred "
                            "times faster"),
        ("text", "MODE", "what is said: prose, echo, lorem, markdown, languages (or one of them), emoji or file:PATH"),
        ("seed", "N", "seed of all draws"),
        ("auto-tool-rate", "RATE", "chance from 0 to 1 that tool_choice auto calls a tool (default: it does "
                                   "when the last user message points at one)"),
        ("builtin-tool-rate", "RATE", "chance from 0 to 1 that tool_choice auto calls a built-in tool (web search and "
                                      "so on), for each that a request has"),
        ("refusal-rate", "RATE", "chance from 0 to 1 that an answer is a refusal"),
        ("no-compact", None, "refuse /v1/responses/compact, as for a model that does not support it"),
        ("fixed-ids", None, "count ids up from 1 and stop `created`, for byte comparisons"),
    )),
    ("gateway", (
        ("upstream-url", "[MODEL=]URL", "with --backend upstream: a chat-completions server, up to its /v1, repeatable; with "
                                        "MODEL= it answers for this model alone"),
        ("upstream-api-key-env", "[MODEL=]NAME", "environment variable with the key of the upstream without, or of that with, "
                                                 "this MODEL=; repeatable"),
        ("upstream-forward-key", None, "send the client's own Authorization header to the upstream"),
        ("model-map", "A=B", "the client's model A is the upstream's B, repeatable"),
        ("upstream-ca", "FILE", "PEM file of the authorities for https upstreams (default: the system's)"),
        ("upstream-connect-timeout-s", "S", "time to connect"),
        ("upstream-read-timeout-s", "S", "time without a byte of an answer"),
        ("upstream-retries", "N", "further attempts while nothing of an answer has come"),
        ("upstream-no-stream", None, "never ask the upstream for a stream"),
        ("upstream-system-role", "ROLE", "role of instructions: system or developer"),
        ("upstream-max-tokens-field", "NAME", "what max_output_tokens is called there: max_tokens or max_completion_tokens"),
        ("upstream-reasoning-field", "NAME", "send earlier reasoning back in assistant messages, as reasoning_content or "
                                             "reasoning (default: it is left out)"),
        ("upstream-think", "HOW", "tags: <think>...</think> at an answer's beginning is reasoning; opened: so it is, without "
                                  "the first tag; off"),
        ("upstream-drop", "FIELD", "never send this field of a request, repeatable"),
    )),
    ("failure on demand", (
        ("fault", "SPEC", "what goes wrong, repeatable: kind:key=value,... with rate=, endpoint=, model=, times= "
                          "(README, \"Failure on demand\")"),
        ("gate-timeout-s", "S", "an answer that waits at a gate fails after this"),
        ("requests-per-minute", "N", "of one API key, or of one address without keys; more get 429; 0 is any number"),
        ("tokens-per-minute", "N", "likewise: what a request may cost at most is taken, and the rest given back at its end"),
        ("journal", "N", "keep the last N requests for GET /_mockturtle/requests and the verdict; costs a stream some "
                         "0.3 us a token; 0 is off"),
    )),
    ("record and replay", (
        ("record", "DIR", "write every exchange of any backend into this folder, without secrets"),
        ("replay", "DIR", "with --backend replay: the folder with the recordings that answer"),
        ("replay-speed", "X", "how many times faster than recorded; 0 is at once"),
        ("replay-match", "HOW", "normalised: ids, dates and temporary paths may differ; exact: they may not"),
        ("replay-fallback", "NAME", "simulated: what has no recording is simulated (default: it is a 404)"),
    )),
    ("leniency", (
        ("strict", None, "the public service's own rules: unknown parameters are 400, and so on"),
        ("refuse-ignored", None, "400 for a field that would be accepted and not acted on"),
    )),
    ("log", (
        ("log-level", "LEVEL", "debug, info (one line a request), warning or error"),
        ("log-format", "FORM", "text or json"),
        ("log-bodies", None, "request bodies as well, at level debug; never keys"),
    )),
    ("state", (
        ("store", "WHERE", "memory, or sqlite:PATH for a file that outlives the server and may be shared"),
        ("store-sync", "HOW", "of a file: normal survives kill -9, full a power loss as well"),
        ("max-responses", "N", "stored responses and chats kept, and as many conversations; the least recently used go first"),
        ("max-background", "N", "background responses in progress at once; more get 429"),
        ("max-store-mb", "MB", "size of all that is stored together"),
        ("store-ttl-s", "S", "age at which a stored response or chat expires"),
    )),
    ("connections", (
        ("heartbeat-s", "S", "SSE comment whenever a stream has nothing due for so long; 0 is off"),
        ("heartbeat-form", "FORM", "comment, or event: 'keepalive', as some gateways send it"),
        ("commit-grace-s", "S", "with a blocking backend: send the status line after this"),
        ("drain-s", "S", "time for running answers after SIGINT or SIGTERM"),
        ("max-connections", "N", "more than these get 503; 0 is the system's limit"),
        ("max-body-mb", "MB", "largest request body"),
        ("header-timeout-s", "S", "time for a request's head"),
        ("body-timeout-s", "S", "time without a byte of a request's body"),
        ("idle-timeout-s", "S", "time a connection may stay without a request"),
        ("send-timeout-s", "S", "time after which a client that takes no byte is dropped"),
        ("websocket-max-s", "S", "age at which a WebSocket ends, with websocket_connection_limit_reached"),
        ("websocket-idle-s", "S", "time a WebSocket may stay without a turn and without a byte from its client"),
        ("websocket-ping-s", "S", "ping a WebSocket's client that was silent for so long; 0 is off"),
        ("transport", "FORM", "loop: one thread for all that cannot block; threads: a thread per "
                              "connection"),
        ("timing-trace", "FILE", "append planned and actual times of every token to a file, as JSON lines; 'memory' "
                                 "for GET /_mockturtle/timing alone"),
        ("lateness-warning-ms", "MS", "warn at the end when 1 %% of all frames were later than this"),
    )),
)
def build_settings_parser():
    """The argparse parser; its option table is the README's."""
    parser = _SettingsParser(
        prog="mockturtle", allow_abbrev=False,
        description="OpenAI-compatible stand-in server: chat completions and stateful Responses, "
                    "streamed with true timing. Standard library only.")
    parser.add_argument("--config", metavar="FILE", help="JSON file of settings; a flag or a MOCKTURTLE_* "
                                                        "variable of the same name weighs more")
    parser.add_argument("--self-test", action="store_true", default=None,
                        help="drive all APIs in this process, state the timing error, and exit")
    parser.add_argument("--check-script", action="store_true", default=None,
                        help="name every mistake of the --script files, and exit: 0 without any, else 1")
    parser.add_argument("--dump-profile", action="store_true", default=None,
                        help="print the profile of --profile or --calibrate as JSON, for a FILE.json, and exit")
    parser.add_argument("--version", action="version", version="mockturtle " + __version__)
    for title, flags in _SETTINGS_FLAGS:
        group = parser.add_argument_group(title)
        for flag, metavar, text in flags:
            name = flag.replace("-", "_")
            default = getattr(Settings, name)
            if default.__class__ is tuple:
                group.add_argument("--" + flag, dest=name, action="append", metavar=metavar, help=text)
            elif default is None or default == "":
                group.add_argument("--" + flag, dest=name, metavar=metavar,
                                   type=float if default is None else str, help=text)
            elif default.__class__ is bool:
                group.add_argument("--" + flag, dest=name, action="store_true", default=None, help=text)
            else:
                shown = "%g" % default if default.__class__ is float else default
                group.add_argument("--" + flag, dest=name, metavar=metavar, type=default.__class__,
                                   help="%s (default: %s)" % (text, shown))
    return parser


def parse_settings(argv, environ=None):
    """Flags over environment over --config file, as Settings. A bad one ends the process: one line, code 2."""
    environ = os.environ if environ is None else environ
    parser = build_settings_parser()
    flags = {name: tuple(value) if value.__class__ is list else value
             for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    config = flags.pop("config", None) or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    commands = {name: flags.pop(name, False) for name in ("self_test", "check_script", "dump_profile")}
    try:
        values = read_config(config) if config else {}
        values.update(read_environment(environ))
        values.update(flags)
        settings = Settings(**values)
        if commands["check_script"] and not settings.script:
            raise ValueError("--check-script needs --script")
    except ValueError as exc:
        parser.error(str(exc))
    vars(settings).update(commands)
    return settings
