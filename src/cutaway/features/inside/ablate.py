"""Leave-one-out ablation: a step's logits and draw without a part of the text before it.

The model reads each changed text again, in batches and with the prefix cache; nothing is estimated.
The draw keeps the step's chain, constraint, luck and history: only the model's input changes.

A part consists of whole tokens: a token, word, line or sentence. A token belongs to the part of its
first byte. A token without bytes, such as a control token, is a part of its own and divides the
text there.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby
from time import monotonic
from typing import Any, NamedTuple

from cutaway.api.llm import LLM
from cutaway.base.checks import check_choice, shown
from cutaway.base.progress import Progress, silent
from cutaway.compute.backends import Logits
from cutaway.engine.interventions import Intervention, knock_out
from cutaway.engine.interventions.intervention import current_name
from cutaway.errors import CutawayError, InputError
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look, inside
from cutaway.features.inside.steps import Redraw
from cutaway.methods.rows import GivenText
from cutaway.rerun.forks import token_id_of
from cutaway.rerun.request import bound
from cutaway.sampling import ReadRow, read_rows
from cutaway.trace import Head, Trace

BY = ("token", "word", "line", "sentence")

# Ideographs, kana, and their punctuation: each is a word of its own.
_ALONE = "\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CLOSING = "[\"'”’»)\\]』」）]*"
_PARTS = {
    # A word includes the spaces before it; a line break is a word of its own.
    "word": re.compile(rf"[^\S\n]*(?:[{_ALONE}]|[^\s{_ALONE}]+)|\s*\n|\s+"),
    "line": re.compile(r"[^\n]*\n|[^\n]+"),
    # A sentence ends with . ! ? … before white space, with 。！？, or before an empty line.
    "sentence": re.compile(
        rf"\s*(?=\S).*?(?:[.!?…]+{_CLOSING}(?=\s)|[。！？]+{_CLOSING}|(?=\s*\n\s*\n)|\Z)|\s+",
        re.DOTALL,
    ),
}


def text_parts(pieces: Sequence[bytes], by: str) -> list[range]:
    """Divide a text, given as its tokens' bytes, into ranges of positions; by: one of ``BY``."""
    if by == "token":
        return [range(i, i + 1) for i in range(len(pieces))]
    parts: list[range] = []
    for empty, run in groupby(range(len(pieces)), lambda i: not pieces[i]):
        places = list(run)
        if empty:
            parts += [range(i, i + 1) for i in places]
        else:
            parts += _divide_run(pieces, range(places[0], places[-1] + 1), _PARTS[by])
    return parts


def _divide_run(pieces: Sequence[bytes], run: range, part: re.Pattern[str]) -> list[range]:
    """Divide a run of tokens, all of which have bytes, into ranges of positions."""
    data = b"".join(pieces[i] for i in run)
    text = data.decode(errors="surrogateescape")  # bytes that are no character stay single
    sizes = accumulate((len(c.encode(errors="surrogateescape")) for c in text), initial=0)
    byte_of = list(sizes)
    starts = [byte_of[match.start()] for match in part.finditer(text)]
    firsts = accumulate((len(pieces[i]) for i in run), initial=0)
    of_token = [(bisect_right(starts, first), i) for first, i in zip(firsts, run, strict=False)]
    grouped = ([i for _, i in same] for _, same in groupby(of_token, lambda pair: pair[0]))
    return [range(places[0], places[-1] + 1) for places in grouped]


# -- a text without each of its parts: deleted, knocked out of attention, or replaced --------------


METHODS = ("delete", "knock_out", "other")

Ids = tuple[int, ...]


class Variant(NamedTuple):
    """A text in which ``instead`` replaces the positions ``start`` to ``stop`` - 1.

    interventions  what this variant adds to the run's own interventions
    """

    start: int
    stop: int
    instead: Ids
    interventions: tuple[Intervention, ...] = ()

    def apply(self, ids: Ids) -> Ids:
        """Return the whole text with its part replaced."""
        return ids[: self.start] + self.instead + ids[self.stop :]

    def prompt_tokens(self, before: int) -> int:
        """How many tokens the prompt has now; before: how many it had."""
        if self.instead:  # as many as there were
            return before
        return before - min(self.stop, before) + min(self.start, before)


def variants(
    llm: LLM, ids: Ids, parts: Sequence[range], method: str, other: int | str | None
) -> list[Variant]:
    """Make a variant for each part that can be removed, in order; method: one of ``METHODS``.

    InputError where no part can be removed, or ``other`` is no token.
    """
    if other is not None and method != "other":
        raise InputError("other", " names the tokens in a part's place: how must be other, too")
    if method == "delete":
        if len(parts) == 1:
            raise InputError(
                "by",
                ": the text before the step is one part, and without it nothing is left: choose "
                "a smaller part, or another how",
            )
        return [Variant(part.start, part.stop, ()) for part in parts]
    if method == "knock_out":
        if llm.graph.states:
            raise InputError(
                "how",
                ": layers of this model have a recurrent state, from which no token can be "
                "knocked out: take delete or other",
            )
        if llm.config.attention == "prefix-lm":
            raise InputError(
                "how",
                ": this model reads its prompt to both sides, and earlier tokens would have read "
                "the token that is knocked out: take delete or other",
            )
        return _knocked_out(ids, parts)
    replacements = _replace_each(llm, ids, other)
    places = [range(max(part.start, 1), part.stop) for part in parts]
    changed = [
        Variant(place.start, place.stop, replacements[place.start : place.stop])
        for place in places
        if replacements[place.start : place.stop] != ids[place.start : place.stop]
    ]
    if not changed:
        raise InputError(
            "how", ": the first token stays, and no other can be replaced: choose another how"
        )
    return changed


def _knocked_out(ids: Ids, parts: Sequence[range]) -> list[Variant]:
    """Knock out each part in turn.

    A part that is only the last token is left out, since no later token attends to it.
    """
    attended = [part for part in parts if part.start < len(ids) - 1]
    if not attended:
        raise InputError(
            "how", ": only the last token is left, which only itself attends to: take a later step"
        )
    return [
        Variant(
            part.start, part.stop, ids[part.start : part.stop],
            (knock_out(f"{part.start}-{part.stop - 1}"),),
        )
        for part in attended
    ]  # fmt: skip


def _replace_each(llm: LLM, ids: Ids, other: int | str | None) -> Ids:
    """Return the text with another token at each position but the first."""
    if other is not None:
        return (ids[0], *[token_id_of(llm, other, "other")] * (len(ids) - 1))
    if len(ids) == 1:
        return ids
    scored = llm.generate([*ids], max_tokens=0, prompt_logprobs=2).prompt_logprobs
    likeliest = ([token for token, _ in read.top] for read in scored)
    pairs = zip(ids[1:], likeliest, strict=True)
    return (ids[0], *(next(t for t in top if t != token) for token, top in pairs))


# -- the ablation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AblatedPart:
    """A part of the text, and the step without it.

    start, stop    the part's positions, ``stop`` excluded
    instead        the tokens that replace the part
    weight         the mean attention weight of all heads, summed over the part's positions
    attribution    the logit attribution, summed over the part's positions and all heads
    logprob, rival_logprob  of the step's token and of its rival, without the part
    effect         the token's logprob with the part, minus ``logprob``
    margin         how much of the token's lead over its rival is lost without the part;
                   ``attribution`` is the direct share of this loss
    drawn          the token that the same luck draws; None if the draw cannot be repeated
    """

    start: int
    stop: int
    token_ids: tuple[int, ...]
    instead: tuple[int, ...]
    weight: float
    attribution: float
    logprob: float
    rival_logprob: float
    effect: float
    margin: float
    drawn: int | None


@dataclass(frozen=True, slots=True)
class Ablation:
    """A step without each part of the text before it. Log-probabilities are in nats.

    An effect is no proof of a cause: repeated words mask each other, and the text becomes odd.

    row_hash, is_as_run  as in ``Look``, for the step with the whole text
    by, how    the kind of part, and how each part was removed
    drawn      the token drawn at the step; None if unknown
    token, rival  the step's token, and the token that it is compared with
    logprob, rival_logprob  the log-probabilities of these two tokens, with the whole text
    token_ids  the text before the step
    parts      the parts that were tried, out of ``total``; the part with the largest absolute
               attributions comes first
    """

    step: int
    row_hash: int
    is_as_run: bool
    by: str
    how: str
    drawn: int | None
    token: int
    rival: int
    logprob: float
    rival_logprob: float
    token_ids: tuple[int, ...]
    total: int
    parts: tuple[AblatedPart, ...]

    def to_dict(self, name: Callable[[int], str]) -> dict[str, Any]:
        """Ready for JSON. Names of tokens are raw."""
        document = asdict(self)
        document["tokens"] = [*map(name, self.token_ids)]
        for part in document["parts"]:
            part["tokens"] = [*map(name, part["token_ids"])]
            part["drawn_token"] = None if part["drawn"] is None else name(part["drawn"])
        document["row"] = f"{document.pop('row_hash'):016x}"
        document["as_run"] = document.pop("is_as_run")
        present = [key for key in ("token", "rival", "drawn") if document[key] is not None]
        token_names = {key: name(document[key]) for key in present}
        return document | {f"{key}_name": token for key, token in token_names.items()}


def ablate(
    llm: LLM,
    trace: Trace,
    step: int,
    *,
    by: str = "token",
    how: str = "delete",
    other: int | str | None = None,
    rival: int | str | None = None,
    budget_s: float | None = None,
    progress: Progress = silent,
    stopped: Callable[[], bool] = bool,
) -> Ablation:
    """Compute a step of a trace without each part of the text before it.

    by        the kind of part: "token", "word", "line" or "sentence"
    how       "delete": the part is left out, and later tokens move up; "knock_out": no
              later token attends to the part, and all keep their positions;
              "other": other tokens replace it
    other     the token that replaces each token of a part, by its text or its id; None: at each
              position the plain model's likeliest other token. The text's first token stays, since
              the model predicts no token at its position
    rival     the token to compare the step's token with; None: the likeliest other token
    budget_s  seconds after which unfinished parts are left out; None: all are tried
    progress  called with ("ablate", parts done, parts in all)
    stopped   called between two steps of the engine; if it returns True, the ablation ends with
              the parts tried so far

    Raises InputError, which names the field, and OtherRowError where the step's row is not the
    recorded row.
    """
    ends = monotonic() + _seconds(budget_s)
    by, how = check_choice("by", by, BY), check_choice("how", current_name(how), METHODS)
    if how == "delete":
        _check_unmoved(trace)
    look = inside(llm, trace, step)
    ids = tuple(look.token_ids)
    places = text_parts([llm.tokenizer.token_bytes(token) for token in ids], by)
    whole = _Whole(llm, trace, look, look.logit_attribution(rival))
    ordered = sorted(variants(llm, ids, places, how, other), key=whole.order)

    def is_over() -> bool:
        return stopped() or monotonic() >= ends

    parts: dict[int, AblatedPart] = {}
    progress("ablate", 0, len(ordered))
    for index, row in _last_rows(llm, trace.head, ids, ordered, is_over):
        parts[index] = whole.less(ordered[index], row)
        progress("ablate", len(parts), len(ordered))
    return whole.result(by, how, len(ordered), tuple(parts[index] for index in sorted(parts)))


def _last_rows(
    llm: LLM, head: Head, ids: Ids, texts: Sequence[Variant], is_over: Callable[[], bool]
) -> Iterator[tuple[int, Logits]]:
    """Yield the index of each variant and the logits after it, until ``is_over``."""
    prompt_tokens = len(head.prompt_token_ids)
    ablated = (
        GivenText(
            variant.apply(ids),
            bound(llm, head, variant.interventions),
            variant.prompt_tokens(prompt_tokens),
        )
        for variant in texts
    )
    return llm.last_rows(GivenText(ids, prompt_tokens=prompt_tokens), ablated, is_over)


def _check_unmoved(trace: Trace) -> None:
    if any(
        intervention.positions or intervention.from_step is not None
        for intervention in trace.head.interventions
    ):
        raise InputError(
            "how",
            ": this run had interventions at some positions, which delete would move: take "
            "other, or knock_out",
        )


def _seconds(budget_s: float | None) -> float:
    if budget_s is None:
        return float("inf")
    is_number = isinstance(budget_s, int | float) and not isinstance(budget_s, bool)
    if not is_number or not 0 < budget_s < float("inf"):
        raise InputError("budget_s", f" must be a number of seconds above 0, not {shown(budget_s)}")
    return float(budget_s)


class _Whole:
    """The step with its whole text, which each ablated part is compared with."""

    def __init__(self, llm: LLM, trace: Trace, look: Look, attribution: LogitAttribution) -> None:
        self._look, self._pair = look, (attribution.token, attribution.rival)
        self._weights = look.mean_weights
        self._attributions, self._sizes = attribution.by_position, attribution.size_by_position
        self._logprobs = self._read(look.logits)
        is_exact = look.is_as_run
        self._redraw = Redraw.from_step(llm, trace, look.step, look.logits) if is_exact else None

    def order(self, variant: Variant) -> float:
        """A variant's key for sorting: the largest absolute attributions come first."""
        return -float(self._sizes[variant.start : variant.stop].sum())

    def less(self, variant: Variant, row: Logits) -> AblatedPart:
        """Compare the step with a row of logits (vocab,) computed without the part."""
        start, stop = variant.start, variant.stop
        (was, rival_was), (now, rival_now) = self._logprobs, self._read(row)
        return AblatedPart(
            start, stop, tuple(self._look.token_ids[start:stop]), variant.instead,
            float(self._weights[start:stop].sum()), float(self._attributions[start:stop].sum()),
            now, rival_now, was - now, (was - rival_was) - (now - rival_now),
            None if self._redraw is None else self._redraw.tokens(row[None])[0],
        )  # fmt: skip

    def result(self, by: str, method: str, total: int, parts: tuple[AblatedPart, ...]) -> Ablation:
        """Return the ablation with the parts that were tried."""
        look, step = self._look, self._look.step
        drawn_id = step.sampled_id if step.sampled_id >= 0 else None
        return Ablation(
            step.index, look.row_hash, look.is_as_run, by, method, drawn_id, *self._pair,
            *self._logprobs,
            tuple(look.token_ids), total, parts,
        )  # fmt: skip

    def _read(self, row: Logits) -> tuple[float, float]:
        """Return a row's log-probabilities of the step's token and of the rival."""
        first, second = (self._logprob(row, token) for token in self._pair)
        return first, second

    def _logprob(self, row: Logits, token: int) -> float:
        [read] = read_rows(row[None], [token], 0)
        if not isinstance(read, ReadRow) or read.logprob is None:
            raise CutawayError("the model's logits are not finite without a part of the text")
        return read.logprob
