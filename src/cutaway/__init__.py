"""cutaway: generate text with a transformer, one token at a time, and see inside.

Begin with ``from cutaway import LLM``. Names are imported when they are first used, so that
``import cutaway`` and ``cutaway --help`` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutaway._version import __version__
from cutaway.errors import CutawayError, FetchError, FormatError, InputError

if TYPE_CHECKING:
    from cutaway.api.async_llm import AsyncLLM
    from cutaway.api.llm import LLM
    from cutaway.api.text_writer import Results
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.engine import Ended, Request, Started, Step
    from cutaway.requests.completion import Completion
    from cutaway.requests.generation import Generations
    from cutaway.requests.sync_llm import Stream
    from cutaway.sampling import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "CutawayError",
    "Ended",
    "FetchError",
    "FormatError",
    "Generations",
    "InputError",
    "LoadedModel",
    "Request",
    "Results",
    "SamplingParams",
    "Started",
    "Step",
    "Stream",
    "__version__",
]

_NAMES = {
    "api.llm": "LLM",
    "api.async_llm": "AsyncLLM",
    "api.text_writer": "Results",
    "compute.loading.model": "LoadedModel",
    "engine": "Ended Request Started Step",
    "requests.completion": "Completion",
    "requests.generation": "Generations",
    "requests.sync_llm": "Stream",
    "sampling": "SamplingParams",
}
_HOME = {name: f"cutaway.{home}" for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
