"""From settings to the backend that they name, with a script in front of it."""
from backends.contract import as_backend
from backends.custom import load_backend
from backends.replay import ReplayBackend
from backends.script_book import RuleBook
from backends.scripted import ScriptedBackend
from backends.simulated import SimulatedBackend
from backends.upstream import UpstreamBackend


def make_backend(settings, tokenizer, log, fault_reader, gate_reader):
    """The one that --backend names, with a script in front of it, where that may stand. fault_reader, gate_reader: of
    the faults and gates of rules. Raises ValueError for one that cannot be made.
    """
    behind = _named_backend(settings, tokenizer, log)
    if behind.judges:
        if settings.script:
            raise ValueError("--script does not go with --backend %s: rules stand in front of the others only"
                             % settings.backend)
        return behind
    voice = behind if settings.backend == "simulated" else SimulatedBackend.from_settings(settings, tokenizer)
    book = RuleBook(settings.script, settings.script_only, log, fault_reader, gate_reader)
    for file in book.files:
        for warning in file.warnings:
            log("warning", str(warning))
    return ScriptedBackend(book, behind, voice, tokenizer, settings.time_scale)


def _named_backend(settings, tokenizer, log):
    if settings.upstream_url and settings.backend != "upstream":
        raise ValueError("--upstream-url needs --backend upstream")
    if settings.replay and settings.backend != "replay":
        raise ValueError("--replay needs --backend replay")
    if settings.backend == "simulated":
        return SimulatedBackend.from_settings(settings, tokenizer)
    if settings.backend == "upstream":
        return UpstreamBackend.from_settings(settings, tokenizer, log)
    if settings.backend == "replay":
        fallback = SimulatedBackend.from_settings(settings, tokenizer) if settings.replay_fallback else None
        replaying = ReplayBackend.from_settings(settings, fallback)
        if settings.model == settings.__class__.model and replaying.models:
            settings.model = replaying.models
        return replaying
    return as_backend(load_backend(settings.backend, settings))
