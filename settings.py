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

ENVIRONMENT_PREFIX = "MOCKTURTLE_"


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
    backend = "simulated"           # or FILE.py:Class
    log_level = "info"              # debug, info (a line a request), warning, error
    log_format = "text"             # or json
    log_bodies = False              # request bodies in the log, at level debug
    allow_host = ()                 # names beside the loopback's under which it may be asked
    cors_origin = ()                # allowed origins; () echoes every origin, ("none",) is off
    ttft_ms = 150.0                 # time to first token, mean
    ttft_std_ms = 0.0
    itl_ms = 10.0                   # inter-token latency, mean
    itl_std_ms = 0.0
    output_tokens = 128             # tokens of an answer that nothing else limits, mean
    output_tokens_std = 0.0
    text = "prose"                  # what is said: of TEXT_MODES, or file:PATH
    max_model_len = 1048576         # context length in tokens: what is longer is refused
    seed = 0                        # of all draws
    auto_tool_rate = None           # how often tool_choice auto calls a tool; None: when the message points at one
    builtin_tool_rate = 0.0         # how often tool_choice auto calls each built-in tool
    refusal_rate = 0.0              # how often an answer is a refusal
    fixed_ids = False               # ids count up and `created` stands still
    store = "memory"                # or sqlite:PATH
    store_sync = "normal"           # full: what was answered survives the machine's power loss as well
    no_compact = False              # /responses/compact answers as for a model that cannot
    max_background = 1000           # background responses in progress at once
    max_responses = 10000           # stored responses; the least recently used go first
    max_store_mb = 256.0            # bytes of all stored responses
    store_ttl_s = 86400.0           # age at which a stored response goes
    heartbeat_s = 1.0               # an SSE comment whenever nothing was due for so long; 0 is off
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

    def guarded(self):
        """Whether what this server keeps or reaches is worth a guard against pages in a browser."""
        return self.store != "memory" and not self.api_key

    def _check(self):
        for name in setting_names():
            default, value = getattr(Settings, name), getattr(self, name)
            if default.__class__ in (int, float) or (default is None and value is not None):
                if value.__class__ not in (int, float):
                    raise ValueError("--%s must be a number, not %r" % (name.replace("_", "-"), value))
        for name in ("ttft_ms", "ttft_std_ms", "itl_ms", "itl_std_ms", "output_tokens_std",
                     "heartbeat_s", "drain_s", "commit_grace_s", "max_connections", "lateness_warning_ms",
                     "websocket_ping_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError("--%s must be 0 or more" % name.replace("_", "-"))
        for name in ("output_tokens", "max_responses", "max_store_mb", "store_ttl_s", "max_body_mb",
                     "header_timeout_s", "body_timeout_s", "max_background", "idle_timeout_s", "send_timeout_s", "max_model_len",
                     "websocket_max_s", "websocket_idle_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError("--%s must be more than 0" % name.replace("_", "-"))
        for name in ("auto_tool_rate", "builtin_tool_rate", "refusal_rate"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ValueError("--%s must be from 0 to 1" % name.replace("_", "-"))
        if not 0 <= self.port <= 65535:
            raise ValueError("--port must be from 0 to 65535")
        file = self.text[len(TEXT_FILE_PREFIX):] if self.text.startswith(TEXT_FILE_PREFIX) else ""
        if self.text not in TEXT_MODES and not file:
            raise ValueError("--text must be file:PATH or one of %s" % ", ".join(TEXT_MODES))
        if self.transport not in ("loop", "threads"):
            raise ValueError("--transport must be loop or threads")
        if self.log_level not in LOG_LEVELS:
            raise ValueError("--log-level must be one of %s" % ", ".join(LOG_LEVELS))
        if self.log_format not in ("text", "json"):
            raise ValueError("--log-format must be text or json")
        if self.tls_key and not self.tls_cert:
            raise ValueError("--tls-key needs --tls-cert")
        if self.store != "memory" and not (self.store.startswith("sqlite:") and self.store != "sqlite:"):
            raise ValueError("--store must be memory or sqlite:PATH")
        if self.store_sync not in ("normal", "full"):
            raise ValueError("--store-sync must be normal or full")
        if not self.model:
            raise ValueError("--model must name at least one model")


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
            return tuple(part.strip() for part in value.split(",") if part.strip())
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
                                  "(default: every origin, and none with a store on disk and no key)"),
        ("allow-host", "NAME", "with a store on disk and no key: answer requests for this Host as well, repeatable"),
    )),
    ("what is simulated", (
        ("backend", "NAME", "simulated, or FILE.py:Class for a backend of your own"),
        ("model", "NAME", "model that /v1/models lists, repeatable; any name is answered"),
        ("max-model-len", "N", "context length in tokens; what is longer is refused"),
        ("strict-models", None, "refuse the names of other models"),
        ("ttft-ms", "MS", "time to first token, mean"),
        ("ttft-std-ms", "MS", "its standard deviation"),
        ("itl-ms", "MS", "inter-token latency, mean"),
        ("itl-std-ms", "MS", "its standard deviation"),
        ("output-tokens", "N", "tokens of an answer that no limit cuts, mean"),
        ("output-tokens-std", "N", "their standard deviation"),
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
    self_test = flags.pop("self_test", False)
    try:
        values = read_config(config) if config else {}
        values.update(read_environment(environ))
        values.update(flags)
        settings = Settings(**values)
    except ValueError as exc:
        parser.error(str(exc))
    settings.self_test = self_test
    return settings
