"""Exposure: what changes when a model reads its own text instead of a human's.

A human text is cut at several points. From each cut on, the model reads the rest, and also writes
its own continuation. docs/experiments.md explains the terms and their sources. Figures are in bits.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.progress import Progress, silent
from cutaway.errors import InputError
from cutaway.requests.completion import Completion
from cutaway.rerun.request import UNSTOPPED, run_together
from cutaway.rerun.statistics import Estimate, bands, estimate
from cutaway.sampling import derive_seed
from cutaway.trace.figures import to_bits

Curves = NDArray[np.float64]
"""One row per window, one column per position after the cut: (windows, horizon)."""

CURVES = ("reads", "writes", "gap", "expects_human", "expects_own", "drift")


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids before a cut, and after the cut in the human's text and in the model's text."""

    start: int
    context: tuple[int, ...]
    human: tuple[int, ...]
    own: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exposure:
    """Curves by window and position after the cut.

    reads         surprise of the human's tokens, given the human's tokens before them
    writes        surprise of the model's own tokens, given its own tokens before them
    expects_human entropy of the next token, given the human's tokens: the surprise that the
                  model expects
    expects_own   the same, given the model's own tokens
    """

    windows: tuple[Window, ...]
    reads: Curves
    writes: Curves
    expects_human: Curves
    expects_own: Curves

    @property
    def gap(self) -> Curves:
        """How many bits more its own text surprises the model than the human's text does."""
        return self.writes - self.reads

    @property
    def drift(self) -> Curves:
        """How much more surprise the model expects after its own tokens than after the human's.

        The drift is 0 at the cut, where both prefixes are the human's. It is 0 everywhere if the
        model's texts are like the human's.
        """
        return self.expects_own - self.expects_human

    def average_bands(self, name: str) -> list[Estimate]:
        """Average one of ``CURVES`` over windows, in each of ``statistics.bands``."""
        curves: Curves = getattr(self, name)
        return [estimate(curves[:, band].mean(axis=1)) for band in bands(curves.shape[1])]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: the windows, every curve, and each curve's means by position."""
        parts = bands(self.reads.shape[1])
        return {
            "windows": [asdict(window) for window in self.windows],
            "curves": {name: getattr(self, name).tolist() for name in CURVES},
            "positions": [[part.start + 1, part.stop] for part in parts],
            "mean": {name: [asdict(e) for e in self.average_bands(name)] for name in CURVES},
        }


def exposure(
    llm: LLM,
    text: str | Sequence[int],
    *,
    before: int = 64,
    tokens: int = 64,
    points: int = 32,
    seed: int = 0,
    progress: Progress = silent,
    **options: Any,
) -> Exposure:
    """Cut a human text at several points; from each, read the rest, and write another text.

    text     a text or its token ids: at least before + 2 · tokens tokens
    before   tokens of the text before each cut
    tokens   tokens after each cut; no stop condition ends a text
    points   the largest number of cuts. Cuts are spread evenly, and the tokens after two cuts never
             overlap
    seed     the i-th window's luck comes from (seed, i)
    progress is called with ("reading and writing", tokens done, tokens in all)
    options  of LLM.generate. By default tokens are drawn from the model's own distribution
             (temperature 1, top_p 1); with other options, ``writes`` depends on them, too

    Raises InputError for a value out of range, and for a text that is too short.
    """
    cuts, seed = _cuts(llm, text, before, tokens, points), check_int("seed", seed, 0, 2**64 - 1)
    common = {"temperature": 1.0, "top_p": 1.0} | options
    common |= {"max_tokens": tokens, "candidates": 1, **UNSTOPPED}
    requests = []
    for i, cut in enumerate(cuts):
        prompt, window_options = (
            [*_begin(llm), *cut.context],
            common | {"seed": derive_seed(seed, i)},
        )
        requests += [(prompt, window_options | {"forced": cut.human}), (prompt, window_options)]
    total = tokens * len(requests)
    done = run_together(llm, requests, lambda n: progress("reading and writing", n, total))
    read, own_texts = done[::2], done[1::2]
    windows = [replace(c, own=w.token_ids) for c, w in zip(cuts, own_texts, strict=True)]
    return Exposure(
        tuple(windows), _surprise(read), _surprise(own_texts), _entropy(read), _entropy(own_texts)
    )


def _cuts(
    llm: LLM, text: str | Sequence[int], before: int, tokens: int, points: int
) -> list[Window]:
    """Windows spread evenly over the text, without the model's own tokens."""
    ids = llm.tokenize(text, add_bos=False) if isinstance(text, str) else list(text)
    before, tokens = check_int("before", before, 1), check_int("tokens", tokens, 1)
    points = check_int("points", points, 2)
    room, fits = llm.model.context, (len(ids) - before) // tokens
    if len(_begin(llm)) + before + tokens > room:
        raise InputError("before", f" and tokens together must fit the model's context of {room}")
    if fits < 2:
        raise InputError(
            f"the text has {len(ids)} tokens and two windows need {before + 2 * tokens}: "
            "take a longer text, or fewer tokens or less before"
        )
    count = min(points, fits)
    last = len(ids) - before - tokens
    starts = [last * i // (count - 1) for i in range(count)]
    return [
        Window(s, tuple(ids[s : s + before]), tuple(ids[s + before :][:tokens])) for s in starts
    ]


def _begin(llm: LLM) -> list[int]:
    """The BOS token, for a model that wants one before every text."""
    bos = llm.tokenizer.bos_id
    return [bos] if llm.tokenizer.add_bos and bos is not None else []


def _surprise(done: list[Completion]) -> Curves:
    return to_bits(-np.array([[step.logprob for step in text.steps] for text in done]))


def _entropy(done: list[Completion]) -> Curves:
    observed = [[step.observed for step in text.steps] for text in done]
    return to_bits(np.array([[o.entropy for o in text if o is not None] for text in observed]))
