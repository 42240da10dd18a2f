"""TextReader: the methods of ``LLM`` that read texts and draw nothing.

Scores, fills, vectors, rankings; what was computed of a prompt, kept on disk; and below these, of
ActivationReader, the numbers of a forward pass.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_ids, check_int
from cutaway.compute.backends import STEP_ROWS, Logits, inspectable
from cutaway.engine import Row, Score, ScoreBidirectional
from cutaway.errors import InputError
from cutaway.requests.base import Message, Prompt
from cutaway.requests.prefill import prefill
from cutaway.requests.sync_llm import LogitsReader, SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions
    from cutaway.methods.embedding import Embeddings
    from cutaway.methods.filling import Filled
    from cutaway.methods.late_interaction import TokenVectors
    from cutaway.methods.nearness import Nearness
    from cutaway.methods.prefix import Prefix
    from cutaway.methods.reranking import Reranking
    from cutaway.methods.rows import TextPositions
    from cutaway.methods.scoring import Likelihood, Pair, Progress, PseudoLikelihood


class ActivationReader(SyncLLM):
    """The methods of ``LLM`` that return logits and tensors of given texts."""

    @abstractmethod
    def with_adapter(self, adapter: str) -> Self:
        """An LLM of this model with a loaded adapter, for functions that take an LLM.

        It shares engine, weights and prefix cache; closing it closes nothing. "" returns this LLM.
        InputError for an adapter that is not loaded.
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

        Row i of a bidirectional model predicts the token at i (with ``ModelConfig.shift``: i + 1).
        start: the position of the first row that is returned
        interventions: of ``cutaway.engine.interventions.bind``
        adapter: the name of a loaded one, as for generate
        Other texts are written meanwhile.
        """
        llm, ids = self.with_adapter(adapter), check_ids("token_ids", token_ids)
        start = check_int("start", start, 0, max(len(ids) - 1, 0))
        is_causal, wanted = self.config.is_causal, tuple(range(start, len(ids)))
        decoder = Score(logits_from=start) if is_causal else ScoreBidirectional(wanted)
        request = llm.request(ids, decoder=decoder, interventions=interventions)
        first = start if is_causal else 0
        reader = LogitsReader(len(ids) - start, self.tokenizer.vocab_size, first)
        with self.owner.running(request, reader):
            self.owner.wait(reader.has_ended)
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
        """The row that predicts the token after a text: its logits and the tensors behind them.

        names: tensors of ``graph``
        firsts: layer -> the first position whose keys and values are wanted
        Other texts are written meanwhile.
        """
        from cutaway.methods.rows import row

        ids = check_ids("token_ids", token_ids)
        return row(self.with_adapter(adapter), ids, names, firsts, interventions)

    def tensors(
        self,
        token_ids: Sequence[int],
        names: Sequence[str],
        interventions: "BoundInterventions | None" = None,
        *,
        adapter: str = "",
    ) -> Mapping[str, NDArray[np.float32]]:
        """Tensors of ``graph`` for all tokens of a text, (tokens, width) each.

        They are computed in one batch, whose activations are all in memory meanwhile: InputError
        for more than 512 tokens.
        """
        from cutaway.methods.rows import text_tensors

        ids = check_ids("token_ids", token_ids)
        if len(ids) > STEP_ROWS:
            raise InputError(
                f"the text has {len(ids)} tokens; tensors of all of them are read of {STEP_ROWS} "
                "at most"
            )
        return text_tensors(self.with_adapter(adapter), ids, names, interventions)

    def last_rows(
        self,
        like: Sequence[int],
        texts: Iterable[tuple[Sequence[int], "BoundInterventions | None"]],
        stopped: Callable[[], bool] = bool,
        *,
        adapter: str = "",
    ) -> Iterator[tuple[int, Logits]]:
        """(index, logits (vocab,)) of the token after each text, in the order in which they end.

        texts: token ids, each with interventions of ``cutaway.engine.interventions.bind``
        like: the prefix of most texts, whose keys and values are kept in memory if there is room
        stopped: called between steps, ends the iteration once true. Closing it early aborts texts.
        """
        from cutaway.methods.rows import last_rows

        return last_rows(self.with_adapter(adapter), check_ids("token_ids", like), texts, stopped)

    def logits_at(self, asked: "Sequence[TextPositions]", *, adapter: str = "") -> list[Logits]:
        """Logits at positions of texts by a bidirectional model, (positions, vocab) for each text.

        asked: (token ids, positions) of each text. InputError for a causal model.
        """
        from cutaway.methods.rows import logits_at

        return logits_at(self.with_adapter(adapter), asked)

    def head(self, hidden: NDArray[np.float32], *, adapter: str = "") -> Logits:
        """The logits (R, vocab) of rows (R, hidden), as if they were the last layer's output."""
        inside = inspectable(self.model.with_adapter(adapter).backend)
        return self.owner.call(lambda: inside.head(hidden).copy())


# -- what is read of texts ---------------------------------------------------------------------


class TextReader(ActivationReader):
    """The methods of ``LLM`` that read texts and draw nothing."""

    def score(
        self, prompt: Prompt, answers: Sequence[Prompt], *, special: bool = False, adapter: str = ""
    ) -> "list[Likelihood]":
        """How likely each answer is after the prompt.

        prompt, answers: texts, or token ids. White space at the end of a prompt belongs to the
        answers, and both are tokenized as one text, as in lm-eval. An empty prompt is BOS.
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
        """As ``score``, for any number of (prompt, answer) pairs, in their order.

        A few hundred pairs are read ahead. Common prefixes of successive pairs are computed once.
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

        Without BOS, and of token ids, the first token is not scored. A text longer than a window is
        cut as in lm-eval: each token is scored once.
        window: the most tokens computed at once; None takes the context
        before: tokens of context before the first scored one, from the second window on
        progress: called with (activity, tokens done, tokens in all)
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

        A bidirectional model predicts it; for a causal one it follows by Bayes' rule.
        top: candidates returned for each mask; targets: only these texts, each scored as a whole
        candidates: how many Bayes' rule considers, and the beam width for several masks together
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.filling import fill

        llm = self.with_adapter(adapter)
        return fill(llm, text, top=top, targets=targets, candidates=candidates)

    def pseudo_likelihood(
        self, text: str, metric: str = "word_l2r", *, adapter: str = ""
    ) -> "PseudoLikelihood":
        """A text's log-likelihood by a bidirectional model: of each token, while it is masked.

        metric: "original", or "word_l2r", where later tokens of the same word are masked too
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.scoring import pseudo_likelihood

        return pseudo_likelihood(self.with_adapter(adapter), text, metric)

    def embed(
        self,
        texts: Any,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        *,
        prompt: str | None = None,
        task: str | None = None,
        truncate: bool = False,
        adapter: str = "",
    ) -> "Embeddings":
        """A vector of each text: the last layer's rows, pooled into one.

        texts: a text or token ids, or a list of either
        pooling: "mean", "cls" (the first row), "last" or "weighted" (the mean by 1, 2, 3 …); None
        takes that of the model's files, else "mean" for a bidirectional model and "last" for a
        causal one
        prompt: the name of one that the model's files have, put in front of each text ("query",
        "document"); "" for none, None for the files' own default
        task: one that the model's folder has an adapter for (jina v3: "retrieval.query", …), which
        computes, with the task's instruction as the prompt if none is given; None for none
        normalize: to length 1; None takes that of the files, else True
        dimensions: keep only the first numbers
        truncate: cut a text that is too long for the model, which otherwise is an InputError
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.embedding import embedding

        asked = embedding(
            self, texts, pooling, normalize, dimensions, prompt=prompt, task=task,
            truncate=truncate, adapter=adapter,
        )  # fmt: skip
        return prefill(self.owner, asked)

    def embed_tokens(
        self,
        texts: Any,
        kind: str = "document",
        dimensions: int | None = None,
        *,
        truncate: bool = False,
        adapter: str = "",
    ) -> "TokenVectors":
        """A vector of each token of each text, of a model for late interaction (ColBERT).

        texts: a text or token ids, or a list of either
        kind: "document", or "query", which some models fill up with mask tokens
        dimensions: keep only the first numbers, before each vector is scaled to length 1
        truncate: cut a text that is too long for the model, which otherwise is an InputError
        adapter: the name of a loaded adapter, as for generate
        ``query.maxsim(documents)`` has the scores. InputError where the model has one vector a
        text.
        """
        from cutaway.methods.late_interaction import token_vectors

        asked = token_vectors(self, texts, kind, dimensions, truncate=truncate, adapter=adapter)
        return prefill(self.owner, asked)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        method: str | None = None,
        instruction: str | None = None,
        truncate: bool = False,
        adapter: str = "",
    ) -> "Reranking":
        """Documents in the order of their relevance for a query.

        A model with a head that scores pairs of texts (a cross-encoder) uses it; one that writes is
        asked for yes or no, in the words that Qwen3-Reranker was trained on; one that makes vectors
        compares them, one for late interaction those of tokens.

        top: only so many; None: all
        method: "head", "maxsim", "answers" or "cosine"; None: the first of these that the model has
        instruction: what makes a document relevant, for one that writes
        truncate: cut documents that are too long for the model, which otherwise is an InputError
        adapter: the name of a loaded adapter, as for generate
        """
        from cutaway.methods.reranking import reranking

        asked = reranking(
            self, query, documents, top=top, method=method, instruction=instruction,
            truncate=truncate, adapter=adapter,
        )  # fmt: skip
        return prefill(self.owner, asked)

    def near(
        self,
        first: str,
        second: str,
        *,
        words: bool = True,
        method: str | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        adapter: str = "",
    ) -> "Nearness":
        """Why two texts are near, or why a document answers a query: what makes their score.

        Where the score is a sum over pairs of tokens (mean pooling, MaxSim) each pair's share is
        told, exactly; of every model what the score is without each word, each a run of its own.

        first, second: for a reranker the query and the document
        words: whether words are left out
        method, instruction: as for rerank; prompt, adapter: as for embed
        InputError as of those.
        """
        from cutaway.methods.nearness import nearness

        asked = nearness(
            self, first, second, words=words, method=method, prompt=prompt,
            instruction=instruction, adapter=adapter,
        )  # fmt: skip
        return prefill(self.owner, asked)

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
        cache_salt: str | None = None,
    ) -> "Prefix":
        """Save the keys and values of a prompt, for ``restore_prefix`` of the same model.

        prompt, messages: as for generate and chat; whole KV blocks of 32 tokens are saved
        special: parse special tokens in a prompt that is text
        compute: compute what the prefix cache lacks; otherwise save only what it has
        adapter: the name of a loaded adapter, as for generate
        cache_salt: as for generate; it is not in the file
        An existing file is replaced once the new one is complete. Raises InputError for a bad
        prompt, CutawayError where the file cannot be written.
        """
        from cutaway.methods.prefix import save_prefix

        llm = self.with_adapter(adapter)
        return save_prefix(
            llm, path, prompt, messages, special=special, compute=compute, cache_salt=cache_salt
        )

    def restore_prefix(
        self, path: str | PathLike[str], *, adapter: str = "", cache_salt: str | None = None
    ) -> "Prefix":
        """Put a saved prefix into the prefix cache, for prompts that begin with its tokens.

        ``cached_tokens`` of the result is less than ``token_ids`` has where ``kv_tokens`` has no
        room for all. The bits are those of computing it. Raises InputError for a file that cannot
        be read or is of another model, FormatError for a damaged one.
        adapter: the name of the adapter that it was saved with
        cache_salt: of the texts that may find it, whatever it was saved with
        """
        from cutaway.methods.prefix import restore_prefix

        return restore_prefix(self.with_adapter(adapter), path, cache_salt=cache_salt)
