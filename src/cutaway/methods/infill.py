"""A text between a prompt and a suffix, by Bayes' rule, for models without FIM tokens.

    p(text | prompt, suffix)  is proportional to  p(text | prompt) · p(suffix | prompt, text)

The model writes some continuations with the request's own chain. Their prefixes of every length are
candidates, drawn from the first factor. One of them is drawn by the second factor: sampling
importance resampling (Rubin 1987).
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import exp, fsum, log

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.engine.request import new_salt
from cutaway.errors import InputError, Name
from cutaway.methods.causal import Causal, ScoredText
from cutaway.methods.rows import LATER, Ids, pin_text
from cutaway.requests.completion import Between
from cutaway.requests.options import Options
from cutaway.requests.sync_llm import Stream, SyncLLM
from cutaway.sampling import derive_seed, text_luck
from cutaway.sampling.fixed_math import log_sum_exp

NUM_CONTINUATIONS = 16
"""How many continuations are written: a step for all costs little more than a step for one."""
NUM_WEIGHED = 64
"""How many candidates are scored with the whole suffix.

They are those after which the suffix's first token is likeliest.
"""


@dataclass(slots=True)
class _Candidate:
    """A prefix of one or more continuations.

    stream  index of the first continuation whose first ``length`` steps are the prefix
    count   how many continuations have it
    first   log-probability of the suffix's first token after it
    """

    stream: int
    length: int
    first: float
    count: int = 1


@plainly
def infill_by_bayes(
    llm: SyncLLM, start: Callable[[Options], list[Stream]], options: Options
) -> list[Stream]:
    """Return the samples of a request with a suffix, each ended where the suffix begins.

    start: queues the continuations of the prompt
    """
    _check(options)
    suffix_ids = tuple(llm.tokenizer.encode(options.suffix, special=options.special, goes_on=True))
    drawing = _Drawing(llm, start, suffix_ids, options)
    first = drawing.sample(options.sampling.seed)
    return [first, *(drawing.sample(derive_seed(first.seed, i)) for i in range(1, options.n))]


def _check(options: Options) -> None:
    """Raise InputError for options that do not fit a text that is cut out of a longer one."""
    constraint = options.constraint
    excluded = {
        "trace": options.trace is not None,
        "align": options.align,
        "forced": bool(options.run.forced),
        "replay": bool(options.run.replay),
        "interventions": bool(options.interventions),
        "check": constraint.check is not None,
        constraint.source.kind if constraint.source else "": constraint.source is not None,
    }
    for name, is_set in excluded.items():
        if is_set:
            raise InputError(
                name,
                ": this model has no fill-in-the-middle tokens, so that a text before a "
                "suffix is cut out of longer ones: leave out ",
                Name(name),
                " or suffix",
            )
    if not options.stopping.max_tokens:
        raise InputError("max_tokens", ": a text before a suffix has 1 token or more: raise it")


@dataclass(frozen=True)
class _Drawing:
    """Draws texts that fit before the suffix."""

    llm: SyncLLM
    start: Callable[[Options], list[Stream]]
    suffix_ids: Ids
    options: Options

    def sample(self, seed: int | None) -> Stream:
        """Draw one text from its own continuations."""
        with ExitStack() as stack:
            streams = [
                stack.enter_context(new) for new in self.start(self._continuation_options(seed))
            ]
            for stream in streams:
                stream.finish()
        candidates = self._candidates(streams)
        seed, entries = streams[0].seed, [*candidates.values()]
        logprobs = self._logprobs(streams[0].prompt_token_ids, [*candidates])
        weights = np.array([log(c.count) + p for c, p in zip(entries, logprobs, strict=True)])
        luck = text_luck(seed, len(entries)) if self._draws else 0.0
        best = int(np.argmax(weights + luck))
        share = exp(weights[best] - log_sum_exp(weights))
        between = Between("bayes", len(streams), len(entries), share, logprobs[best])
        text = streams[entries[best].stream]
        text.truncate(entries[best].length, self.options, seed, between)
        return text

    @property
    def _draws(self) -> bool:
        return self.options.sampling.temperature > 0

    def _continuation_options(self, seed: int | None) -> Options:
        """Return the continuations' options: one token longer, so that a row follows each token."""
        options = self.options
        return replace(
            options, n=NUM_CONTINUATIONS if self._draws else 1, suffix="", draft=None,
            sampling=replace(options.sampling, seed=seed),
            stopping=replace(options.stopping, max_tokens=options.stopping.max_tokens + 1),
            track=(*options.track, self.suffix_ids[0]),
        )  # fmt: skip

    def _candidates(self, streams: Sequence[Stream]) -> dict[Ids, _Candidate]:
        """Return the candidates to weigh, by their tokens, in the order of the continuations."""
        candidates: dict[Ids, _Candidate] = {}
        for index, stream in enumerate(streams):
            ids = tuple(step.token_id for step in stream.steps)
            for length, first in self._beginnings(stream):
                if ids[:length] in candidates:
                    candidates[ids[:length]].count += 1
                else:
                    candidates[ids[:length]] = _Candidate(index, length, first)
        if not candidates:
            limits = self.llm.engine.limits
            num_tokens = len(streams[0].prompt_token_ids) + len(self.suffix_ids)
            raise limits.too_long(num_tokens, "prompt", " and suffix have")
        order = {
            ids: (-candidate.first, place)
            for place, (ids, candidate) in enumerate(candidates.items())
        }
        weighed = set(nsmallest(NUM_WEIGHED, order, key=order.__getitem__))
        return {ids: candidate for ids, candidate in candidates.items() if ids in weighed}

    def _beginnings(self, stream: Stream) -> Iterator[tuple[int, float]]:
        """Yield (length, first) of prefixes of whole characters that leave room for the suffix."""
        room = self.llm.model.context - len(stream.prompt_token_ids) - len(self.suffix_ids)
        min_tokens, decoder = (
            self.options.constraint.min_tokens,
            getincrementaldecoder("utf-8")("replace"),
        )
        for length, step in enumerate(stream.steps):
            assert step.observed is not None
            if min_tokens <= length <= room and not decoder.getstate()[0]:
                [logit] = {c.logit for c in step.observed.candidates if c.id == self.suffix_ids[0]}
                yield length, logit - step.observed.log_sum_exp
            decoder.decode(self.llm.tokenizer.token_bytes(step.token_id))

    def _logprobs(self, prompt: Ids, texts: Sequence[Ids]) -> list[float]:
        """Return the log-probability of the suffix after each text."""
        texts_with_suffix = [
            ScoredText(prompt + text + self.suffix_ids, len(prompt) + len(text)) for text in texts
        ]
        salt, prompt_tokens = self._salt(), len(prompt)
        model = Causal(self.llm, salt, prompt_tokens=prompt_tokens)
        run = replace(LATER, cache_salt=salt)
        with pin_text(self.llm, prompt, run, prompt_tokens=prompt_tokens):
            return [fsum(logprobs) for logprobs in model.score_tokens(texts_with_suffix)]

    def _salt(self) -> str | None:
        """Return the request's salt; without a prompt cache, a new salt that no text shares."""
        run = self.options.run
        return run.cache_salt if run.cache_prompt else new_salt()
