"""The half of ``LLM`` that draws nothing: logits, likelihoods, fillings, embeddings, prefixes."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_ids, check_int
from cutaway.compute.backends import Logits, inspectable
from cutaway.engine import Row, Score, ScoreBidirectional
from cutaway.requests.base import Message
from cutaway.requests.prefill import prefill
from cutaway.requests.prompts import Prompt
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions
    from cutaway.methods.embedding import Embeddings
    from cutaway.methods.filling import Filled
    from cutaway.methods.filling.bidirectional import TextPositions
    from cutaway.methods.filling.likelihood import PseudoLikelihood
    from cutaway.methods.prefix import Prefix
    from cutaway.methods.scoring import Likelihood, Pair, Progress


class TextReader(SyncLLM):
    """The half of ``LLM`` that draws nothing."""

    @abstractmethod
    def with_adapter(self, adapter: str) -> Self:
        """The same model under the adapter of a name, as ``lora`` has it.

        For what takes an LLM: a replay, a look inside. It shares engine, weights and prefix cache,
        and closing it closes nothing; "" is this one. InputError for a name that was not loaded.
        """

    def logits(
        self,
        token_ids: Sequence[int],
        start: int = 0,
        interventions: "BoundInterventions | None" = None,
        *,
        adapter: str = "",
    ) -> Logits:
        """Teacher-forced logits, float32 (n, vocab): row i predicts the token at i + 1.

        Of a model that sees more than the past, it is the token at i (``ModelConfig.shift``: at
        i + 1).
        start: of which position the first row is; those before it are computed and not returned.
        interventions: of ``cutaway.engine.interventions.bind``
        adapter: the name of a loaded one, as for generate
        Runs beside whatever else is written.
        """
        llm, ids = self.with_adapter(adapter), check_ids("token_ids", token_ids)
        start = check_int("start", start, 0, max(len(ids) - 1, 0))
        is_causal, wanted = self.config.is_causal, tuple(range(start, len(ids)))
        decoder = Score(logits_from=start) if is_causal else ScoreBidirectional(wanted)
        request = llm.request(ids, decoder=decoder, interventions=interventions)
        first = start if is_causal else 0
        reader = LogitsReader(len(ids) - start, self.tokenizer.vocab_size, first)
        with self.owner.running(request, reader):
            self.owner.wait(lambda: reader.ended)
        return reader.logits()

    def row(
        self,
        token_ids: Sequence[int],
        names: Sequence[str],
        firsts: Mapping[int, int],
        interventions: "BoundInterventions | None" = None,
        *,
        adapter: str = "",
    ) -> Row:
        """The row that predicts what follows a text: its logits, and what it was made from.

        names: of tensors in ``graph``; firsts: by layer, the first position of which keys and
        values are wanted. Runs beside whatever else is written, and keeps nothing.
        """
        from cutaway.methods.pinned import row

        ids = check_ids("token_ids", token_ids)
        return row(self.with_adapter(adapter), ids, names, firsts, interventions)

    def last_rows(
        self,
        like: Sequence[int],
        texts: Iterable[tuple[Sequence[int], "BoundInterventions | None"]],
        stopped: Callable[[], bool] = bool,
        *,
        adapter: str = "",
    ) -> Iterator[tuple[int, Logits]]:
        """(index, logits (vocab,)) of what follows each text, in the order in which they end.

        texts: token ids, each with interventions of ``cutaway.engine.interventions.bind``
        like: what most of them begin like, whose keys and values stay in memory where there is room
        stopped: called between two steps. Closing the iterator early aborts what runs.
        """
        from cutaway.methods.pinned import last_rows

        return last_rows(self.with_adapter(adapter), check_ids("token_ids", like), texts, stopped)

    def logits_at(self, asked: "Sequence[TextPositions]", *, adapter: str = "") -> list[Logits]:
        """What the model says of positions of texts that it sees as a whole, (n, vocab) each.

        asked: (token ids, positions) of each text, many of which are read at once. InputError where
        the model sees only the past
        """
        from cutaway.methods.filling.bidirectional import logits_at

        return logits_at(self.with_adapter(adapter), asked)

    def score(
        self, prompt: Prompt, answers: Sequence[Prompt], *, special: bool = False, adapter: str = ""
    ) -> "list[Likelihood]":
        """How likely each answer is after the prompt: nothing is drawn.

        prompt, answers: texts, or token ids, which are taken as they are. White space at the end of
        a prompt belongs to the answers, and both are encoded as one text, as lm-eval does it. An
        empty prompt is BOS.
        special: parse special tokens such as <|im_start|> in texts
        adapter: the name of a loaded adapter, as for generate
        The log-probabilities are those of ``generate`` with prompt_logprobs, to the bit. Raises
        InputError for an empty answer, TooLongError where prompt and answer do not fit.
        """
        from cutaway.methods.scoring import scores

        asked = scores(self, prompt, answers, special=special, adapter=adapter)
        return prefill(self.owner, asked)

    def score_each(
        self, pairs: "Iterable[Pair]", *, special: bool = False, adapter: str = ""
    ) -> "Iterator[Likelihood]":
        """As ``score``, for any number of prompts with an answer each, in their order.

        Some hundred are read ahead. Those that begin alike are computed once where they follow each
        other.
        """
        from cutaway.methods.scoring import scores_of_each

        for part in scores_of_each(self, pairs, special=special, adapter=adapter):
            yield from prefill(self.owner, part)

    def likelihood(
        self,
        text: Prompt,
        *,
        window: int | None = None,
        before: int = 1,
        special: bool = False,
        adapter: str = "",
        progress: "Progress | None" = None,
    ) -> "Likelihood":
        """How likely a text of any length is: each token after BOS, given those before it.

        Of a model without BOS, and of token ids, the first token is not scored. What is longer than
        a window is cut, as lm-eval does it: each token is scored once.
        window: tokens that are read at once; None takes the context
        before: tokens in front of the first that a window scores, from the second window on
        progress: called with what is done, how many tokens, and of how many
        """
        from cutaway.methods.scoring import likelihood

        asked = likelihood(
            self, text, window=window, before=before, special=special, adapter=adapter,
            progress=progress,
        )  # fmt: skip
        return prefill(self.owner, asked)

    def fill(
        self,
        text: str,
        top: int = 5,
        targets: Iterable[str] | None = None,
        *,
        candidates: int = 64,
        adapter: str = "",
    ) -> "Filled":
        """What fits where a text has [MASK], or the model's own mask token.

        A model that sees the whole text says it; of one that writes, it follows by Bayes' rule.
        top: how many for each mask. targets: only these texts, each scored whole. candidates: how
        many are considered by Bayes' rule, and how many beginnings of several masks together
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.filling import fill

        llm = self.with_adapter(adapter)
        return fill(llm, text, top=top, targets=targets, candidates=candidates)

    def pseudo_likelihood(
        self, text: str, metric: str = "word_l2r", *, adapter: str = ""
    ) -> "PseudoLikelihood":
        """How well a text suits a model that sees it as a whole: each token, while it is masked.

        metric: "original", or "word_l2r", where those after it in its word are masked, too
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.filling.likelihood import pseudo_likelihood

        return pseudo_likelihood(self.with_adapter(adapter), text, metric)

    def embed(
        self,
        texts: Any,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        *,
        truncate: bool = False,
        adapter: str = "",
    ) -> "Embeddings":
        """A vector of each text: rows of the last layer, which become one.

        texts: a text or token ids, or a list of either
        pooling: "mean", "cls" (the first row) or "last"; None does what the model's files say, or
        else "mean" where a token sees the whole text, and "last" where it sees what is before it.
        normalize: to length 1; None does what the files say, or else True
        dimensions: only this many numbers, the first
        truncate: cut a text that is longer than the model reads, which is else an InputError
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.embedding import embedding

        asked = embedding(
            self, texts, pooling, normalize, dimensions, truncate=truncate, adapter=adapter
        )
        return prefill(self.owner, asked)

    def head(self, hidden: NDArray[np.float32], *, adapter: str = "") -> Logits:
        """The logits that rows (R, hidden) would have if they were the last layer's: (R, vocab)."""
        inside = inspectable(self.model.with_adapter(adapter).backend)
        return self.owner.call(lambda: inside.head(hidden).copy())

    # -- what was computed, on disk ------------------------------------------------------------

    def save_prefix(
        self,
        path: str | PathLike[str],
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        special: bool = False,
        compute: bool = True,
        adapter: str = "",
    ) -> "Prefix":
        """Save the keys and values of a prompt, for ``restore_prefix`` of the same model.

        prompt, messages: as for generate and chat; whole KV blocks of 32 tokens are saved
        special: parse special tokens in a prompt that is text
        compute: compute what the prefix cache lacks; else save what it has
        adapter: the name of a loaded adapter, whose keys and values are not the model's
        A file of this name is replaced once the new one is whole. Raises InputError for a prompt
        that cannot be, CutawayError where it cannot be written.
        """
        from cutaway.methods.prefix import save_prefix

        llm = self.with_adapter(adapter)
        return save_prefix(llm, path, prompt, messages, special=special, compute=compute)

    def restore_prefix(self, path: str | PathLike[str], *, adapter: str = "") -> "Prefix":
        """Put a saved prefix into the prefix cache: prompts that begin with its tokens go on there.

        ``cached_tokens`` of the result are fewer than ``token_ids`` where ``kv_tokens`` has no
        room for all. Not a bit is other than if it had been computed. Raises InputError for a file
        that cannot be read or is of another model, FormatError for one that is damaged.
        adapter: the name of the one that it was saved with
        """
        from cutaway.methods.prefix import restore_prefix

        return restore_prefix(self.with_adapter(adapter), path)
