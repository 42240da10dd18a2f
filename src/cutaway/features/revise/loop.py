"""A causal model for the rules: it scores texts, and draws tokens with the engine's loop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutaway.features.revise.places import Mask
from cutaway.methods.rows import Causal, Ids
from cutaway.requests.sync_llm import SyncLLM


class Loop(Causal):
    """Scores and draws. allowed: the tokens that may be drawn, (vocab,)."""

    def __init__(self, llm: SyncLLM, allowed: Mask) -> None:
        super().__init__(llm)
        self._allowed = np.flatnonzero(allowed).tolist()

    def drawn(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """Draw ``count`` tokens after a text."""
        stream = self._llm.stream(
            head, max_tokens=count, temperature=temperature, top_p=1.0, seed=seed,
            allowed_token_ids=self._allowed, stop=(), ignore_eos=True,
        )  # fmt: skip
        with stream:
            done = stream.finish()
        self.rows += done.usage.prompt_tokens - done.usage.cached_tokens + count
        return done.token_ids


def draft(llm: SyncLLM, head: Ids, options: dict[str, Any], stopped: Callable[[], bool]) -> Ids:
    """The draft that the model writes after a prompt, up to where it was stopped."""
    with llm.stream(head, **options) as stream:
        for _ in stream:
            if stopped():
                break
        return tuple(step.token_id for step in stream.steps)
