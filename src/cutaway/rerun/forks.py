"""Two texts that differ from one token on: what this mistake costs, and for how long.

Curves are by distance from the mistake; docs/experiments.md defines them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import InputError
from cutaway.rerun.request import bound, check_from_left, check_vocabulary
from cutaway.rerun.statistics import Curve, divergence, surprise
from cutaway.trace import Trace
from cutaway.trace.differences import SHORTEST_RUN, common_prefix

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions


@dataclass(frozen=True, slots=True)
class Reconvergence:
    """The fork's first ``SHORTEST_RUN`` tokens that are also in the original, after the mistake.

    distance  of the first of them from the mistake
    shift     how many tokens later they are in the original; 0 at the same position
    """

    distance: int
    shift: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A text with one mistake in it, beside the original. Curves are by distance: 1, 2, …

    at, token_id, instead_of  the step, the mistake, and the original's token
    bits       surprise of the mistake; ``instead_bits`` is that of the original's token
    token_ids  the fork's own, after the mistake
    forced     KL in bits of the next token's distribution, original ‖ with the mistake, both
               followed by the original's tokens
    cost       by how many bits the original's token is more surprising after the mistake
    free       KL in bits, original ‖ fork, each followed by its own tokens
    """

    at: int
    token_id: int
    instead_of: int
    bits: float
    instead_bits: float
    token_ids: tuple[int, ...]
    forced: Curve
    cost: Curve
    free: Curve
    reconvergence: Reconvergence | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        values = asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


class Original:
    """A text that forks are compared with.

    logits         of its steps, (steps, vocab)
    interventions  of the text and of its forks
    """

    def __init__(
        self,
        llm: LLM,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        interventions: "BoundInterventions | None" = None,
    ) -> None:
        self._llm, self.prompt, self.token_ids = llm, list(prompt), tuple(token_ids)
        self._interventions = interventions
        self.logits = self._after(self.prompt, self.token_ids)

    def fork(self, at: int, token_ids: Sequence[int], horizon: int | None = None) -> Fork:
        """The curves after a mistake at step ``at`` of ``token_ids``, the fork's whole answer.

        horizon: how many tokens after it are measured, if not all
        """
        stop = None if horizon is None else at + 1 + horizon
        after, begun = slice(at + 1, stop), [*self.prompt, *token_ids[: at + 1]]
        meant, written, plain = self.token_ids[after], tuple(token_ids[after]), self.logits[after]
        forced, free = self._after(begun, meant), self._after(begun, written)
        both = min(len(plain), len(free))
        return Fork(
            at=at,
            token_id=token_ids[at],
            instead_of=self.token_ids[at],
            bits=self._bits(at, token_ids[at]),
            instead_bits=self._bits(at, self.token_ids[at]),
            token_ids=written,
            forced=divergence(plain, forced),
            cost=surprise(forced, meant) - surprise(plain, meant),
            free=divergence(plain[:both], free[:both]),
            reconvergence=reconvergence(written, meant),
        )

    def _bits(self, at: int, token_id: int) -> float:
        return float(surprise(self.logits[at : at + 1], [token_id])[0])

    def _after(self, begun: list[int], following: Sequence[int]) -> Logits:
        """Logits of each of the tokens that follow, (len(following), vocab)."""
        rows = self._llm.logits([*begun, *following[:-1]], len(begun) - 1, self._interventions)
        return rows[: len(following)]


def diff_models(llm: LLM, a: Trace, b: Trace) -> Fork | None:
    """Trace ``b`` as a fork of ``a``, scored by a model with ``a``'s interventions.

    The first token that differs is the mistake. None where one text is the beginning of the other.
    Raises InputError where the prompts differ, or the model has another vocabulary.
    """
    for one in (a, b):
        check_from_left("what a mistake costs", one)
    check_vocabulary(llm, a)
    check_vocabulary(llm, b)
    if a.head.prompt_token_ids != b.head.prompt_token_ids:
        raise InputError("the two traces have different prompts: their steps cannot be compared")
    original, fork = a.output_token_ids, b.output_token_ids
    at = common_prefix(original, fork)
    if at == min(len(original), len(fork)):
        return None
    return Original(llm, a.head.prompt_token_ids, original, bound(llm, a.head)).fork(at, fork)


def reconvergence(fork: Sequence[int], original: Sequence[int]) -> Reconvergence | None:
    """Of two texts after a mistake; None where they share no such run."""
    runs: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(original) - SHORTEST_RUN + 1):
        runs.setdefault(tuple(original[i : i + SHORTEST_RUN]), []).append(i)
    for i in range(len(fork) - SHORTEST_RUN + 1):
        if found := runs.get(tuple(fork[i : i + SHORTEST_RUN])):
            return Reconvergence(i + 1, min((j - i for j in found), key=abs))
    return None
