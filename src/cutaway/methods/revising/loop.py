"""What a rule asks of a model, answered by the engine. Refuses to know rules."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.methods.filling.causal import Causal, Ids
from cutaway.methods.revising.places import Mask
from cutaway.requests.runner import Runner

if TYPE_CHECKING:
    from cutaway.api.text_writer import TextWriter


class Loop(Causal):
    """One model, whose loop draws, too. allowed: the tokens that may be drawn, (vocab,)."""

    def __init__(self, llm: "TextWriter", runner: Runner, allowed: Mask) -> None:
        super().__init__(runner)
        self._llm, self._allowed = llm, np.flatnonzero(allowed).tolist()

    def drawn(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """So many tokens, drawn after what is given."""
        done = self._llm.generate(
            head, max_tokens=count, temperature=temperature, top_p=1.0, seed=seed,
            allowed_token_ids=self._allowed, stop=(), ignore_eos=True,
        )  # fmt: skip
        self.rows += done.usage.prompt_tokens - done.usage.cached_tokens + count
        return done.token_ids


def draft(
    llm: "TextWriter", head: Ids, options: dict[str, Any], stopped: Callable[[], bool]
) -> Ids:
    """What the loop writes after a prompt, as far as it came."""
    with llm.stream(head, **options) as stream:
        for _ in stream:
            if stopped():
                break
        return tuple(step.token_id for step in stream.steps)
