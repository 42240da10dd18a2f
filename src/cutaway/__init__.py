"""cutaway: generate text with a transformer, one token at a time, and see inside.

``from cutaway import LLM`` is the whole beginning. Names are imported when first
used, so that ``import cutaway`` (and ``cutaway --help``) costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutaway._version import __version__
from cutaway.errors import CutawayError, FetchError, FormatError, InputError

if TYPE_CHECKING:
    from cutaway.api.async_llm import AsyncLLM
    from cutaway.api.llm import LLM, Completion, Results, Stream
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.engine import Ended, Request, Started, Step
    from cutaway.requests.generations import Generations
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

_HOME = {
    "LLM": "cutaway.api.llm",
    "AsyncLLM": "cutaway.api.async_llm",
    "Generations": "cutaway.requests.generations",
    "Completion": "cutaway.api.llm",
    "Results": "cutaway.api.llm",
    "Stream": "cutaway.api.llm",
    "SamplingParams": "cutaway.sampling",
    "Ended": "cutaway.engine",
    "Request": "cutaway.engine",
    "Started": "cutaway.engine",
    "Step": "cutaway.engine",
    "LoadedModel": "cutaway.compute.loading.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
