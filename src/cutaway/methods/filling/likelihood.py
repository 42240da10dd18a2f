"""The pseudo-log-likelihood of a text by a bidirectional model.

The sum over all tokens of log p(token | the text with the token masked), with a pass for each.
Knows which other tokens are masked too: none ("original", Salazar et al. 2020, arXiv 1910.14659),
or those after it in the same word ("word_l2r", Kauf & Ivanova 2023, arXiv 2305.10588). Without the
latter a rare word of several pieces looks likely, since each piece gives the others away.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import fsum
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_choice
from cutaway.errors import InputError
from cutaway.methods.filling.bidirectional import Ids, TextPositions, logits_at, logprob_of
from cutaway.requests.base import limits_of
from cutaway.requests.sync_llm import SyncLLM

METRICS = ("original", "word_l2r")


@dataclass(frozen=True)
class PseudoLikelihood:
    """Of one text. metric: one of METRICS; logprobs: natural, of each of the text's own tokens."""

    metric: str
    token_ids: Ids
    logprobs: tuple[float, ...]

    @property
    @plainly
    def total(self) -> float:
        """The pseudo-log-likelihood, in nats."""
        return fsum(self.logprobs)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"total": self.total}


@plainly
def pseudo_likelihood(llm: SyncLLM, text: str, metric: str) -> PseudoLikelihood:
    """See ``LLM.pseudo_likelihood``."""
    check_choice("metric", metric, METRICS)
    limits_of(llm.model).check_head()
    tokenizer = llm.tokenizer
    if llm.config.is_causal:
        raise InputError(
            "this model sees only what is before a token: likelihood says how likely a text is"
        )
    words = tokenizer.words(text)
    if not any(words):
        raise InputError("the text has no tokens: write something")
    if tokenizer.mask_id is None:
        raise InputError("this model names no mask token, so that it cannot be asked of each token")
    whole = tuple(tokenizer.encode_parts(token_id for word in words for token_id in word))
    start = int(tokenizer.add_bos)  # the tokens around the text are not scored
    asked = masked(whole, start, words, tokenizer.mask_id, metric)
    own = tuple(whole[place] for _, (place,) in asked)
    each = (logprob_of(row, i) for row, i in zip(logits_at(llm, asked), own, strict=True))
    return PseudoLikelihood(metric, own, tuple(each))


def masked(
    whole: Ids, start: int, words: Sequence[Sequence[int]], mask: int, metric: str
) -> list[TextPositions]:
    """For each token of the words: the text with the token masked, and its position.

    start: the position of the first word's first token
    """
    asked: list[TextPositions] = []
    for word, first in zip(words, accumulate(map(len, words), initial=start), strict=False):
        for place in range(first, first + len(word)):
            end = first + len(word) if metric == "word_l2r" else place + 1
            asked.append(((*whole[:place], *[mask] * (end - place), *whole[end:]), (place,)))
    return asked
