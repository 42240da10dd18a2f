"""cutaway: generate text with a transformer, one token at a time, and see inside.

``from cutaway import LLM`` is the whole beginning. Names are imported when first
used, so that ``import cutaway`` (and ``cutaway --help``) costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutaway._version import __version__
from cutaway.errors import CutawayError, FetchError, FormatError, InputError

if TYPE_CHECKING:
    from cutaway.api.async_llm import AsyncLLM, AsyncTexts
    from cutaway.api.llm import LLM, Completion, Results, Stream
    from cutaway.engine import TokenStep
    from cutaway.sampling import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncTexts",
    "Completion",
    "CutawayError",
    "FetchError",
    "FormatError",
    "InputError",
    "Results",
    "SamplingParams",
    "Stream",
    "TokenStep",
    "__version__",
]

_HOME = {
    "LLM": "cutaway.api.llm",
    "AsyncLLM": "cutaway.api.async_llm",
    "AsyncTexts": "cutaway.api.async_llm",
    "Completion": "cutaway.api.llm",
    "Results": "cutaway.api.llm",
    "Stream": "cutaway.api.llm",
    "SamplingParams": "cutaway.sampling",
    "TokenStep": "cutaway.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
