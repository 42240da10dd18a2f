"""Methods of a model besides generation: score, decide, fill, embed, rank, save a prefix.

A method is declared once, here: a function over ``BaseLLM`` that makes requests for the engine, or
a function over ``SyncLLM``. ``api/text_reader.py`` makes it a method of LLM and AsyncLLM, and the
server calls the function itself. Each module is imported when it is first used: to import them all
would take a quarter of the time of a start.
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
