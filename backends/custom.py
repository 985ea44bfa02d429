"""A user's own backend out of a file: FILE.py:Class.

The file does `from mockturtle import Backend, TextDelta, Finish` in all forms, checkout, single file and
wheel: a module of that name that holds the running contract is there before the file is loaded.
"""
import os
import sys
from types import ModuleType

from api_common import ApiError, __version__
from backends.contract import (Backend, Cancel, Failure, Finish, GenerationRequest, History, ItemEnd, ItemStart,
                               ItemUpdate, OutputFormat, ReasoningDelta, RefusalDelta, TextDelta, TextRun,
                               ToolCallDelta, ToolChoice, ToolSpec, Usage)

CONTRACT_NAMES = {
    "ApiError": ApiError, "Backend": Backend, "Cancel": Cancel, "Failure": Failure, "Finish": Finish,
    "GenerationRequest": GenerationRequest, "History": History, "ItemEnd": ItemEnd, "ItemStart": ItemStart,
    "ItemUpdate": ItemUpdate, "OutputFormat": OutputFormat, "ReasoningDelta": ReasoningDelta,
    "RefusalDelta": RefusalDelta, "TextDelta": TextDelta, "TextRun": TextRun,
    "ToolCallDelta": ToolCallDelta, "ToolChoice": ToolChoice, "ToolSpec": ToolSpec, "Usage": Usage,
    "__version__": __version__,
}


def load_backend(spec, settings):
    """The backend that "FILE.py:Class" names, made with Class(), or Class(settings) if it takes one.

    Raises ValueError with one clear line for a file, class or constructor that does not work.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError("--backend %s: expected simulated or FILE.py:Class" % spec)
    if not os.path.isfile(path):
        raise ValueError("--backend %s: there is no file %s" % (spec, path))
    if "mockturtle" not in sys.modules:
        module = ModuleType("mockturtle", "The contract of the running mockturtle server.")
        vars(module).update(CONTRACT_NAMES)
        sys.modules["mockturtle"] = module
    from importlib.util import module_from_spec, spec_from_file_location
    found = spec_from_file_location("mockturtle_user_backend", path)
    module = module_from_spec(found)
    sys.modules["mockturtle_user_backend"] = module     # dataclasses look their module up there
    try:
        found.loader.exec_module(module)
    except Exception as exc:
        raise ValueError("--backend %s: the file does not load: %s: %s" % (spec, type(exc).__name__, _one_line(exc)))
    made = getattr(module, name, None)
    if made is None:
        raise ValueError("--backend %s: the file has no %s" % (spec, name))
    try:
        backend = made(settings) if _takes_settings(made) else made()
    except Exception as exc:
        raise ValueError("--backend %s: %s cannot be made: %s: %s" % (spec, name, type(exc).__name__, _one_line(exc)))
    if not callable(getattr(backend, "generate", None)):
        raise ValueError("--backend %s: %s has no generate(request, cancel)" % (spec, name))
    return backend


def _one_line(exc):
    return " ".join(str(exc).split())


def _takes_settings(made):
    from inspect import signature
    try:
        return len([each for each in signature(made).parameters.values()
                    if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY,
                                                                    each.POSITIONAL_OR_KEYWORD)]) == 1
    except (TypeError, ValueError):
        return False                # no signature to read: made without arguments
