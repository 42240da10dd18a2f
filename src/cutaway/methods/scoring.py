"""Likelihoods of given texts: answers after a prompt, and a long text as a whole.

This module cuts a text into prompt and answer tokens, and a long text into windows, as lm-eval
does. It makes the requests for them, and computes a bidirectional model's pseudo-log-likelihood.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, chain, islice
from math import exp, fsum
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_bool, check_choice, check_int, shown
from cutaway.base.progress import Progress
from cutaway.engine import Event, Request, ScoreAnswers, Scored
from cutaway.errors import InputError, Name, TooLongError
from cutaway.methods.rows import Ids, TextPositions, logits_at, logprob_of
from cutaway.requests.base import Prompt, check_prompt, limits_of
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import ReadRow, SamplingParams

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM


# -- cutting -----------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A prompt and its answer as tokens."""

    prompt: Ids
    answer: Ids


class Cutter:
    """Cuts prompts and answers into tokens. Raises InputError naming the argument.

    Token ids are not changed. White space at the end of a prompt belongs to the answer. Two texts
    are encoded as one, whose tokens after the prompt's own are the answer's. If a token would span
    both, the answer is encoded by itself. An empty prompt stands for BOS.
    special: parse special tokens such as <|im_start|> in texts
    adapter: the name of a loaded adapter; "": none
    """

    def __init__(self, llm: "BaseLLM", *, special: bool = False, adapter: str = "") -> None:
        self.adapter = llm.adapter_hash(adapter)
        self._special = check_bool("special", special)
        self._llm, self._limits = llm, limits_of(llm.model)
        self._limits.check_causal(
            "fill and pseudo_likelihood" if self._limits.fills_masks else None
        )
        self.room = llm.room
        self._encode_prompt = lru_cache(16)(self._encode)

    def pair(self, prompt: Any, answer: Any, name: str = "answer", before: str = "prompt") -> Cut:
        """Cut one prompt and answer. name, before: the answer's and prompt's names in errors."""
        prompt, answer = check_prompt(prompt, before), check_prompt(answer, name)
        least = [self._least(prompt), self._least(answer)]
        if max(least) > self.room + 1:  # reading megabytes takes a minute
            raise self._too_long(before, name, *(f"at least {length}" for length in least))
        cut = self._cut(prompt, answer)
        if not cut.answer:
            raise InputError(name, " has no tokens: give one that is not empty")
        cut = Cut(cut.prompt or self._begin(before), cut.answer)
        if len(cut.prompt) + len(cut.answer) > self.room + 1:  # the last token is not read
            raise self._too_long(before, name, len(cut.prompt), len(cut.answer))
        for field, ids in ((before, cut.prompt), (name, cut.answer)):
            self._limits.check_ids(field, ids)
        return cut

    def whole(self, text: Any) -> Ids:
        """Return the tokens of a text of any length, after BOS if the model has one."""
        text = check_prompt(text, "text")
        ids, begin = self._encode(text), self._llm.tokenizer.bos_id
        if isinstance(text, str) and begin is not None and ids[:1] != (begin,):
            ids = begin, *ids
        if len(ids) < 2:
            raise InputError(
                "the text has no token after its first, which alone is not scored: write more"
            )
        self._limits.check_ids("text", ids)
        return ids

    def _cut(self, prompt: Prompt, answer: Prompt) -> Cut:
        if not (isinstance(prompt, str) and isinstance(answer, str)):
            return Cut(self._encode_prompt(_hashable(prompt)), self._encode(answer, goes_on=True))
        bare = prompt.rstrip()
        answer = prompt[len(bare) :] + answer
        before, whole = self._encode_prompt(bare), self._encode(bare + answer)
        if whole[: len(before)] == before:
            return Cut(before, whole[len(before) :])
        return Cut(before, self._encode(answer, goes_on=True))

    def _encode(self, text: Prompt, *, goes_on: bool = False) -> Ids:
        if not isinstance(text, str):
            return tuple(map(int, text))
        encode = self._llm.tokenizer.encode
        return tuple(encode(text, special=self._special, goes_on=goes_on))

    def _least(self, text: Prompt) -> int:
        return self._llm.tokenizer.min_tokens(text) if isinstance(text, str) else len(text)

    def _too_long(self, before: str, name: str, *tokens: object) -> TooLongError:
        lengths = " and ".join(map(str, tokens))
        return TooLongError(
            before,
            f" and {name} have {lengths} tokens, and this model's maximum context length "
            f"is {self.room}, which the last token may exceed: shorten one",
        )

    def _begin(self, name: str) -> Ids:
        begin = self._llm.tokenizer.bos_id
        if begin is None:
            raise InputError(name, " is empty and this model has no begin token: write something")
        return (begin,)


def _hashable(prompt: Prompt) -> Prompt:
    return prompt if isinstance(prompt, str) else tuple(prompt)


def windows(ids: Ids, size: int, before: int = 1) -> Iterator[Cut]:
    """Yield the parts of a text that together score each token but the first once, in order.

    A part computes at most ``size`` tokens. The first part scores all it can. Each other part
    scores as many as leave ``before`` tokens of context; the last has as much context as fits.
    """
    done, last = 0, len(ids) - 1  # numbers of tokens to score
    while done < last:
        count = min(last - done, size if not done else size - before + 1)
        end = done + count
        yield Cut(ids[max(end - size, 0) : done + 1], ids[done + 1 : end + 1])
        done = end


# -- likelihoods of tokens ---------------------------------------------------------------------
# Answers that differ in their last token alone are one request.


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of tokens after a prompt, by the model's unprocessed logits.

    prompt_token_ids  the tokens before those that are scored
    token_ids         the tokens that are scored
    logprobs          natural log-probability of each token, given all tokens before it
    ranks             rank of each token among all tokens: 1 is the likeliest; in a tie, the lowest
                      id comes first
    """

    prompt_token_ids: Ids
    token_ids: Ids
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]

    @property
    @plainly
    def total(self) -> float:
        """The log-likelihood of all tokens, in nats: the exact sum, rounded once."""
        return fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest at its position."""
        return all(rank == 1 for rank in self.ranks)

    @property
    @plainly
    def perplexity(self) -> float:
        """The exponential of minus the mean log-probability."""
        return exp(-self.total / len(self.token_ids))

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return asdict(self) | {"total": self.total, "is_greedy": self.is_greedy}


class LookUpReader(EndListener):
    """Receives the log-probabilities of one text's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[ReadRow] = []

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored):
            self._rows += event.rows

    @property
    def num_scored(self) -> int:
        """The number of tokens scored so far."""
        return len(self._rows)

    def rows(self) -> list[ReadRow]:
        """The scored rows, once the text has ended; raises the text's error."""
        self.check("likelihoods")
        return self._rows


Scores = PrefillTask[LookUpReader, list[Likelihood]]


def scoring(cuts: Iterable[Cut], adapter: str = "", *, are_windows: bool = False) -> Scores:
    """Return a task for the likelihood of each answer.

    adapter: as in a ``Request``
    are_windows: the cuts are those of ``windows``: what comes before an answer is no prompt, so
    that every model reads it from left to right
    """
    all_cuts = [*cuts]
    ends_after: dict[Cut, list[int]] = {}  # prompt and answer without its last token -> last tokens
    for prompt, answer in all_cuts:
        ends = ends_after.setdefault(Cut(prompt, answer[:-1]), [])
        if answer[-1] not in ends:
            ends.append(answer[-1])

    def requests() -> Iterator[Request]:
        for (prompt, answer_start), ends in ends_after.items():
            prompt_tokens = 0 if are_windows else len(prompt)
            decoder = ScoreAnswers(len(prompt), tuple(ends), prompt_tokens)
            yield _template().but(
                prompt_token_ids=prompt + answer_start, decoder=decoder, adapter=adapter
            )

    def likelihoods(readers: Sequence[LookUpReader]) -> list[Likelihood]:
        rows_of_cut: dict[Cut, list[ReadRow]] = {}
        for (cut, ends), reader in zip(ends_after.items(), readers, strict=True):
            rows, length = reader.rows(), len(cut.answer)
            for end, row in zip(ends, rows[length:], strict=True):
                rows_of_cut[Cut(cut.prompt, (*cut.answer, end))] = [*rows[:length], row]
        return [_likelihood(cut, rows_of_cut[cut]) for cut in all_cuts]

    return PrefillTask(requests(), LookUpReader, likelihoods)


@lru_cache
def _template() -> Request:
    """Return a request whose parts are checked once for all requests."""
    return Request(prompt_token_ids=(), sampling=SamplingParams(temperature=0, seed=0))


def _likelihood(cut: Cut, rows: Sequence[ReadRow]) -> Likelihood:
    logprobs, ranks = [], []
    for row in rows:
        assert row.logprob is not None
        assert row.rank is not None
        logprobs.append(row.logprob)
        ranks.append(row.rank)
    return Likelihood(cut.prompt, cut.answer, tuple(logprobs), tuple(ranks))


def join_windows(parts: Sequence[Likelihood]) -> Likelihood:
    """Return the likelihood of a text from the likelihoods of its windows."""
    return Likelihood(
        parts[0].prompt_token_ids,
        tuple(chain.from_iterable(part.token_ids for part in parts)),
        tuple(chain.from_iterable(part.logprobs for part in parts)),
        tuple(chain.from_iterable(part.ranks for part in parts)),
    )


# -- likelihoods of texts ----------------------------------------------------------------------

Pair = tuple[Prompt, Prompt]
_CHUNK = 512  # how many pairs are read ahead


def score(
    llm: "BaseLLM",
    prompt: Prompt,
    answers: Sequence[Prompt],
    *,
    special: bool = False,
    adapter: str = "",
) -> Scores:
    """How likely each answer is after the prompt.

    prompt, answers: texts, or token ids. White space at the end of a prompt belongs to the
    answers, and both are tokenized as one text, as in lm-eval. An empty prompt stands for BOS.
    special: parse special tokens such as <|im_start|> in texts
    adapter: the name of a loaded adapter, as for generate
    The log-probabilities are those of ``generate`` with the answer ``forced``, to the bit; also
    those with prompt_logprobs, unless the model reads its prompt to both sides. Raises InputError
    for an empty answer, TooLongError where prompt and answer do not fit.
    """
    is_list = isinstance(answers, Sequence) and not isinstance(answers, str | bytes)
    if not is_list or not answers:
        raise InputError(
            "answers", f" must be a list of texts or of lists of ids, not {shown(answers)}"
        )
    cutter = Cutter(llm, special=special, adapter=adapter)
    cuts = (cutter.pair(prompt, answer, Name("answers", i)) for i, answer in enumerate(answers))
    return scoring(cuts, cutter.adapter)


def likelihood(
    llm: "BaseLLM",
    text: Prompt,
    *,
    window: int | None = None,
    before: int = 1,
    special: bool = False,
    adapter: str = "",
    progress: Progress | None = None,
) -> PrefillTask[LookUpReader, Likelihood]:
    """How likely a text of any length is: each token after BOS, given those before it.

    The first token is not scored if the model has no BOS, or if the text is token ids. A text
    longer than a window is cut as in lm-eval: each token is scored once.
    window: the most tokens computed at once; None takes the length of the context
    before: tokens of context before the first scored token, from the second window on
    progress: called with (activity, tokens done, tokens in all)
    """
    cutter = Cutter(llm, special=special, adapter=adapter)
    size = check_int("window", cutter.room if window is None else window, 1, cutter.room)
    cuts = [*windows(cutter.whole(text), size, check_int("before", before, 1, size))]
    task = scoring(cuts, cutter.adapter, are_windows=True)
    total = sum(len(cut.answer) for cut in cuts)

    def tell(readers: Sequence[LookUpReader]) -> None:
        if progress is not None:
            progress("scoring", sum(reader.num_scored for reader in readers), total)

    return PrefillTask(
        task.requests, LookUpReader, lambda readers: join_windows(task.answer(readers)), tell
    )


def scores_of_each(
    llm: "BaseLLM", pairs: Iterable[Pair], *, special: bool = False, adapter: str = "",
    are_windows: bool = False,
) -> Iterator[Scores]:  # fmt: skip
    """Yield a task for every few hundred (prompt, answer) pairs; see ``LLM.score_each``.

    are_windows: see ``scoring``
    """
    cutter = Cutter(llm, special=special, adapter=adapter)
    try:
        numbered = enumerate(pairs)
    except TypeError:
        raise InputError(
            "pairs", " must be prompts with an answer each: a list, or an iterator"
        ) from None
    while chunk := [*islice(numbered, _CHUNK)]:
        cuts = (
            cutter.pair(*_two(i, pair), Name("pairs", i, prose=": answer")) for i, pair in chunk
        )
        yield scoring(cuts, cutter.adapter, are_windows=are_windows)


def _two(index: int, pair: Any) -> Pair:
    two: Any = () if isinstance(pair, str) else pair  # "ab" is no pair of letters
    try:
        prompt, answer = two
    except (TypeError, ValueError):
        raise InputError(Name("pairs", index), " must be a prompt and an answer") from None
    return prompt, answer


# -- by a bidirectional model ------------------------------------------------------------------
# The sum over all tokens of log p(token | the text with the token masked), with a pass for each.
# A metric may mask other tokens, too: "original" masks none (Salazar et al. 2020, arXiv
# 1910.14659); "word_l2r" masks those after it in the same word (Kauf & Ivanova 2023, arXiv
# 2305.10588). Without these masks a rare word of several pieces looks likely, since each piece
# gives the others away.

METRICS = ("original", "word_l2r")


@dataclass(frozen=True)
class PseudoLikelihood:
    """The pseudo-log-likelihood of a text.

    metric    one of METRICS
    logprobs  natural log-probability of each of the text's own tokens
    """

    metric: str
    token_ids: Ids
    logprobs: tuple[float, ...]

    @property
    @plainly
    def total(self) -> float:
        """The pseudo-log-likelihood, in nats."""
        return fsum(self.logprobs)

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return asdict(self) | {"total": self.total}


def pseudo_likelihood(
    llm: SyncLLM, text: str, metric: str = "word_l2r", *, adapter: str = ""
) -> PseudoLikelihood:
    """Return a text's log-likelihood by a bidirectional model, which scores each token masked.

    metric: "original", or "word_l2r", where later tokens of the same word are masked too
    adapter: the name of a loaded adapter, as for generate
    """
    llm = llm.with_adapter(adapter)
    check_choice("metric", metric, METRICS)
    limits_of(llm.model).check_head()
    tokenizer = llm.tokenizer
    if llm.config.is_causal:
        raise InputError(
            "this model continues texts, and fills in no masked token: likelihood says how likely "
            "a text is"
        )
    words = tokenizer.words(text)
    if not any(words):
        raise InputError("the text has no tokens: write something")
    if tokenizer.mask_id is None:
        raise InputError("this model names no mask token, so that it cannot be asked of each token")
    whole = tuple(tokenizer.encode_parts(token_id for word in words for token_id in word))
    start = int(tokenizer.add_bos)  # the tokens around the text are not scored
    masked_texts = each_masked(whole, start, words, tokenizer.mask_id, metric)
    token_ids = tuple(whole[place] for _, (place,) in masked_texts)
    return PseudoLikelihood(metric, token_ids, _logprobs(llm, masked_texts, token_ids))


@plainly
def _logprobs(llm: SyncLLM, masked: Sequence[TextPositions], token_ids: Ids) -> tuple[float, ...]:
    rows = logits_at(llm, masked)
    return tuple(logprob_of(row, i) for row, i in zip(rows, token_ids, strict=True))


def each_masked(
    whole: Ids, start: int, words: Sequence[Sequence[int]], mask: int, metric: str
) -> list[TextPositions]:
    """Return, for each token of the words, the text with the token masked, and its position.

    start: the position of the first word's first token
    """
    masked_texts: list[TextPositions] = []
    for word, first in zip(words, accumulate(map(len, words), initial=start), strict=False):
        for place in range(first, first + len(word)):
            end = first + len(word) if metric == "word_l2r" else place + 1
            masked_texts.append(((*whole[:place], *[mask] * (end - place), *whole[end:]), (place,)))
    return masked_texts
