"""What a model says of texts that are given, for many readers at once.

Nothing is written here. Knows which questions are requests of their own, answered together with
whatever else runs, and which are asked of an ``LLM`` where the weights are. Refuses to know where.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.engine import Reader, Request
from cutaway.requests.base import BaseLLM
from cutaway.requests.prompts import Prompt
from cutaway.requests.reading import read_all

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions
    from cutaway.methods.embedding import Embeddings
    from cutaway.methods.filling import Filled
    from cutaway.methods.filling.likelihood import PseudoLikelihood
    from cutaway.methods.scoring import Likelihood, Pair, Scorer

P = ParamSpec("P")
T = TypeVar("T")


class AsyncReader(BaseLLM, ABC):
    """The half of ``AsyncModel`` that draws nothing."""

    @abstractmethod
    async def queue(self, asked: Sequence[tuple[Request, int]]) -> Reader:
        """Queue n samples of each request, all or none, for one reader of all, in this order.

        The seeds are chosen, so that the caller knows what is asked of each: ``Request.samples``.
        Raises InputError for what does not fit the model, QueueFullError where there is no room.
        """

    @abstractmethod
    async def aside(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What a function of an ``LLM`` returns or raises, called where the weights are.

        It must be found by its name in its module: it, its arguments and its result may be
        pickled. Others are served meanwhile, and one is called at a time. Cancelled, it is told
        that nobody waits any more.
        """

    # -- reading -----------------------------------------------------------------------------

    async def embed(
        self,
        texts: Any,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        *,
        truncate: bool = False,
        adapter: str = "",
    ) -> "Embeddings":
        """As ``LLM.embed``; others are served meanwhile."""
        from cutaway.methods.embedding import Embedder, VectorReader

        asked = await asyncio.to_thread(
            Embedder, self, texts, pooling=pooling, normalize=normalize, dimensions=dimensions,
            truncate=truncate, adapter=adapter,
        )  # fmt: skip
        readers = await read_all(self.queue, asked.requests, VectorReader)
        return asked.found([reader.vector() for reader in readers])

    async def score(
        self, prompt: Prompt, answers: Sequence[Prompt], *, special: bool = False, adapter: str = ""
    ) -> "list[Likelihood]":
        """As ``LLM.score``; others are served meanwhile."""
        from cutaway.methods.scoring import answers_of

        return await self._scored(
            await asyncio.to_thread(
                answers_of, self, prompt, answers, special=special, adapter=adapter
            )
        )

    async def score_each(
        self, pairs: "Iterable[Pair]", *, special: bool = False, adapter: str = ""
    ) -> "AsyncIterator[Likelihood]":
        """As ``LLM.score_each``; the pairs are taken in a thread, and others are served."""
        from cutaway.methods.scoring import parts_of

        parts = parts_of(self, pairs, special=special, adapter=adapter)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            for found in await self._scored(part):
                yield found

    async def likelihood(
        self,
        text: Prompt,
        *,
        window: int | None = None,
        before: int = 1,
        special: bool = False,
        adapter: str = "",
    ) -> "Likelihood":
        """As ``LLM.likelihood``; others are served meanwhile."""
        from cutaway.methods.scoring import joined, windows_of

        asked = await asyncio.to_thread(
            windows_of, self, text, window=window, before=before, special=special, adapter=adapter
        )
        return joined(await self._scored(asked))

    async def logits(
        self,
        token_ids: Sequence[int],
        start: int = 0,
        interventions: "BoundInterventions | None" = None,
        *,
        adapter: str = "",
    ) -> Logits:
        """As ``LLM.logits``; others are served meanwhile."""
        return await self.aside(LLM.logits, token_ids, start, interventions, adapter=adapter)

    async def fill(
        self,
        text: str,
        top: int = 5,
        targets: Iterable[str] | None = None,
        *,
        candidates: int = 64,
        adapter: str = "",
    ) -> "Filled":
        """As ``LLM.fill``; others are served meanwhile."""
        return await self.aside(
            LLM.fill, text, top, targets, candidates=candidates, adapter=adapter
        )

    async def pseudo_likelihood(
        self, text: str, metric: str = "word_l2r", *, adapter: str = ""
    ) -> "PseudoLikelihood":
        """As ``LLM.pseudo_likelihood``; others are served meanwhile."""
        return await self.aside(LLM.pseudo_likelihood, text, metric, adapter=adapter)

    async def _scored(self, asked: "Scorer") -> "list[Likelihood]":
        from cutaway.methods.scoring import LookUpReader

        return asked.found(await read_all(self.queue, asked.requests, LookUpReader))
