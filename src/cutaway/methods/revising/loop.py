"""What a rule computes with a causal model: likelihoods, and tokens that the loop draws."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutaway.methods.filling.causal import Causal, Ids
from cutaway.methods.revising.places import Mask
from cutaway.requests.sync_llm import SyncLLM


class Loop(Causal):
    """One model, whose loop draws, too. allowed: the tokens that may be drawn, (vocab,)."""

    def __init__(self, llm: SyncLLM, allowed: Mask) -> None:
        super().__init__(llm)
        self._allowed = np.flatnonzero(allowed).tolist()

    def drawn(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """So many tokens, drawn after what is given."""
        stream = self._llm.stream(
            head, max_tokens=count, temperature=temperature, top_p=1.0, seed=seed,
            allowed_token_ids=self._allowed, stop=(), ignore_eos=True,
        )  # fmt: skip
        with stream:
            done = stream.finish()
        self.rows += done.usage.prompt_tokens - done.usage.cached_tokens + count
        return done.token_ids


def draft(llm: SyncLLM, head: Ids, options: dict[str, Any], stopped: Callable[[], bool]) -> Ids:
    """What the loop writes after a prompt, as far as it came."""
    with llm.stream(head, **options) as stream:
        for _ in stream:
            if stopped():
                break
        return tuple(step.token_id for step in stream.steps)
