"""ActivationReader: the methods of ``LLM`` that return the numbers of a forward pass."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_ids, check_int
from cutaway.compute.backends import STEP_ROWS, Logits, inspectable
from cutaway.engine import Row, Score, ScoreBidirectional
from cutaway.errors import InputError
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions
    from cutaway.methods.rows import TextPositions


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
