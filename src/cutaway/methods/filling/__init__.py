"""Finds what fits the masks of a text.

Knows how a text with masks is read. A bidirectional model predicts the masks (``masked``); for a
causal model the candidates follow by Bayes' rule (``bayes``).
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError
from cutaway.methods.filling.bayes import fill_by_bayes
from cutaway.methods.filling.filled import FillCandidate, Filled, Joint
from cutaway.methods.filling.masked import fill_masked
from cutaway.requests.base import limits_of
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.text import Tokenizer

__all__ = ["MARK", "FillCandidate", "Filled", "Joint", "fill"]

MARK = "[MASK]"


@plainly
def fill(
    llm: SyncLLM,
    text: str,
    *,
    top: int,
    targets: Iterable[str] | None,
    candidates: int,
) -> Filled:
    """See ``LLM.fill``."""
    limits_of(llm.model).check_head()
    parts = split_at_masks(text, llm.tokenizer)
    top, width = check_int("top", top, 1, 1000), check_int("candidates", candidates, 1, 1000)
    wanted = None if targets is None else _check_targets(targets)
    way = fill_by_bayes if llm.config.is_causal else fill_masked
    return way(llm, parts, top=top, targets=wanted, width=max(top, width))


def split_at_masks(text: str, tokenizer: "Tokenizer") -> list[str]:
    """The text before, between and after the masks; InputError where there is none."""
    if not isinstance(text, str):
        raise InputError(f"text must be a string, not {shown(text)}")
    marks, mask = [MARK], tokenizer.mask_id
    if mask is not None and not tokenizer.token_bytes(mask):  # else it is a word, as DiffuGPT's
        marks.append(tokenizer.token_name(mask))
    parts = re.split("|".join(map(re.escape, marks)), text)
    if len(parts) == 1:
        raise InputError(
            f"the text has no mask: write {' or '.join(dict.fromkeys(marks))} where something is "
            "to be filled in"
        )
    return parts


def _check_targets(targets: Iterable[str]) -> list[str]:
    found = None if isinstance(targets, str) else [*targets]
    if not found or not all(isinstance(one, str) and one.strip() for one in found):
        raise InputError(f"targets must be a list of texts, not {shown(targets)}")
    return [*dict.fromkeys(found)]
