"""What a model does besides writing: score, decide, fill, embed, rank, save a prefix.

A method is declared once, here, as a function over ``BaseLLM`` that makes requests for the engine,
or over ``SyncLLM``; ``api/text_reader.py`` makes a method of LLM and AsyncLLM of it, and HTTP asks
the function itself. Modules are imported when they are first asked for: all of them would be a
quarter of a start.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.methods import (
        decision,
        embedding,
        filling,
        late_interaction,
        nearness,
        prefix,
        reranking,
        rows,
        scoring,
    )
else:

    def __getattr__(name):
        from importlib import import_module

        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
