"""Rows of given texts: logits and activations, for the methods and the inspection features.

The requests here only read texts; the caller decides how to use the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cutaway.base.checks import check_ids, check_int
from cutaway.compute.backends import STEP_ROWS, Logits, inspectable
from cutaway.engine import (
    Embed,
    PinPrefix,
    PinWhole,
    Request,
    Row,
    RunParams,
    Score,
    ScoreBidirectional,
)
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine.loop.pinned import (
    Floats,
    WholeText,
    is_ready,
    read_row,
    read_state,
    read_text,
    read_whole,
)
from cutaway.errors import CutawayError, InputError
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import iterate_ended
from cutaway.requests.sync_llm import LogitsReader, SyncLLM
from cutaway.sampling import ReadRow, read_rows

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions


Ids = tuple[int, ...]


# -- of a whole text ---------------------------------------------------------------------------


def logits(
    llm: SyncLLM,
    token_ids: Sequence[int],
    start: int = 0,
    interventions: "BoundInterventions | None" = None,
    *,
    adapter: str = "",
    prompt_tokens: int = 0,
) -> Logits:
    """Teacher-forced logits, float32 (n, vocab): row i predicts the token at i + 1.

    Row i of a bidirectional model predicts the token at i (with ``ModelConfig.shift``: i + 1).
    start: the position of the first row that is returned
    interventions: made by ``cutaway.engine.interventions.bind``
    adapter: the name of a loaded adapter, as for generate
    prompt_tokens: how many first tokens are the prompt, which a model such as HRM-Text reads to
    both sides; start is then prompt_tokens - 1 or more. Other models have no use for it
    Other texts run meanwhile.
    """
    llm, ids = llm.with_adapter(adapter), check_ids("token_ids", token_ids)
    prompt_tokens = check_int("prompt_tokens", prompt_tokens, 0, len(ids))
    start = check_int("start", start, max(prompt_tokens - 1, 0), max(len(ids) - 1, 0))
    is_causal, positions = llm.config.is_causal, tuple(range(start, len(ids)))
    decoder = Score(start, prompt_tokens) if is_causal else ScoreBidirectional(positions)
    request = llm.request(ids, decoder=decoder, interventions=interventions)
    first = start if is_causal else 0
    reader = LogitsReader(len(ids) - start, llm.tokenizer.vocab_size, first)
    with llm.owner.running(request, reader):
        llm.owner.wait(reader.has_ended)
    return reader.logits()


def head(llm: SyncLLM, hidden: Floats, *, adapter: str = "") -> Logits:
    """Return the logits (R, vocab) of rows (R, hidden) taken as the last layer's output."""
    inside = inspectable(llm.model.with_adapter(adapter).backend)
    return llm.owner.call(lambda: inside.head(hidden).copy())


# -- after a pinned prefix ---------------------------------------------------------------------
# The prefix stays in the KV cache meanwhile. It is computed like any prompt, together with other
# sequences.

LATER = RunParams(priority=1)
"""Settings that compute a prefix after other requests."""
_RUN = RunParams()


def row(
    llm: SyncLLM,
    token_ids: Sequence[int],
    names: Sequence[str],
    firsts: Mapping[int, int],
    interventions: "BoundInterventions | None" = None,
    *,
    adapter: str = "",
    prompt_tokens: int = 0,
) -> Row:
    """The row that predicts the token after a text: its logits and tensors.

    names: tensors of ``graph``
    firsts: layer -> the first position whose keys and values are read
    prompt_tokens: see ``logits``
    Other texts run meanwhile.
    """
    llm, ids = llm.with_adapter(adapter), check_ids("token_ids", token_ids)
    with pin_text(llm, ids, interventions=interventions, prompt_tokens=prompt_tokens) as (
        sequence,
        wait,
    ):

        def read() -> Row | None:  # None: other texts have taken the prefix's memory since
            ready = is_ready(sequence)
            return read_row(llm.engine, sequence, names, firsts) if ready else None

        while (result := llm.owner.call(read)) is None:
            wait()
        return result


def tensors(
    llm: SyncLLM,
    token_ids: Sequence[int],
    names: Sequence[str],
    interventions: "BoundInterventions | None" = None,
    *,
    adapter: str = "",
    prompt_tokens: int = 0,
) -> Mapping[str, Floats]:
    """Tensors of ``graph`` for all tokens of a text, (tokens, width) each.

    prompt_tokens: see ``logits``
    One batch computes them, and all its activations are in memory meanwhile: InputError for
    more than 512 tokens.
    """
    llm, ids = llm.with_adapter(adapter), check_ids("token_ids", token_ids)
    if len(ids) > STEP_ROWS:
        raise InputError(
            f"the text has {len(ids)} tokens; tensors of all of them are read of {STEP_ROWS} at "
            "most"
        )
    with pin_text(llm, ids, interventions=interventions, prompt_tokens=prompt_tokens) as (
        sequence,
        wait,
    ):

        def read() -> Mapping[str, Floats] | None:
            return read_text(llm.engine, sequence, names) if is_ready(sequence) else None

        while (result := llm.owner.call(read)) is None:
            wait()
        return result


def text_state(
    llm: SyncLLM, token_ids: Sequence[int], interventions: "BoundInterventions | None" = None
) -> Floats:
    """Return all layers' recurrent state after a text: (numbers,), laid out as ``state_layout``."""
    with pin_text(llm, [*token_ids, token_ids[-1]], interventions=interventions) as (
        sequence,
        wait,
    ):

        def read() -> Floats | None:
            return read_state(llm.engine, sequence) if is_ready(sequence) else None

        while (state := llm.owner.call(read)) is None:
            wait()
        return state


def whole_text(
    llm: SyncLLM, request: Request, names: Sequence[str], layers: Sequence[int]
) -> WholeText:
    """Return all rows of a text that ``Embed`` reads in one step; some layers' keys and values."""
    assert isinstance(request.decoder, Embed)
    whole = replace(request, decoder=PinWhole(**vars(request.decoder)))
    with _pin_request(llm, whole) as (sequence, wait):

        def read() -> WholeText | None:
            return read_whole(llm.engine, sequence, names, layers) if is_ready(sequence) else None

        while (text := llm.owner.call(read)) is None:
            wait()
        return text


class GivenText(NamedTuple):
    """A text whose last row is read.

    interventions  of ``cutaway.engine.interventions.bind``
    prompt_tokens  see ``logits``
    """

    token_ids: Sequence[int]
    interventions: "BoundInterventions | None" = None
    prompt_tokens: int = 0


def last_rows(
    llm: SyncLLM,
    like: GivenText,
    texts: Iterable[GivenText],
    stopped: Callable[[], bool] = bool,
    *,
    adapter: str = "",
) -> Iterator[tuple[int, Logits]]:
    """Yield (index, logits (vocab,)) of the token after each text, in the order in which they end.

    like: the prefix of most texts, whose keys and values stay in memory if there is room
    stopped: called between steps; once it returns True, the iteration ends. Closing the iterator
    early aborts texts.
    """
    llm, vocab = llm.with_adapter(adapter), llm.tokenizer.vocab_size
    like_ids = check_ids("token_ids", like.token_ids)
    jobs = (
        (
            llm.request(
                ids, decoder=Score(len(ids) - 1, prompt_tokens), interventions=interventions
            ),
            LogitsReader(1, vocab, len(ids) - 1),
        )
        for ids, interventions, prompt_tokens in texts
    )
    with pin_text(llm, like_ids, LATER, like.interventions, prompt_tokens=like.prompt_tokens):
        for index, reader in iterate_ended(llm.owner, jobs, stopped):
            yield index, reader.logits()[0]


@contextmanager
def pin_text(
    llm: SyncLLM,
    token_ids: Sequence[int],
    run: RunParams = _RUN,
    interventions: "BoundInterventions | None" = None,
    *,
    prompt_tokens: int = 0,
) -> Iterator[tuple[EngineSequence, Callable[[], None]]]:
    """Keep a text's keys and values, except the last token's, until other texts need the memory.

    The keys and values are computed when the `with` block begins. Yields the sequence, and a
    function that waits until the keys and values are in memory again.
    prompt_tokens: see ``logits``
    """
    prompt_tokens = check_int("prompt_tokens", prompt_tokens, 0, len(token_ids))
    decoder = PinPrefix(prompt_tokens)
    request = llm.request(token_ids, decoder=decoder, run=run, interventions=interventions)
    with _pin_request(llm, request) as pin:
        yield pin


@contextmanager
def _pin_request(
    llm: SyncLLM, request: Request
) -> Iterator[tuple[EngineSequence, Callable[[], None]]]:
    listener = EndListener()
    with llm.owner.running(request, listener) as sequence:

        def wait() -> None:
            llm.owner.wait(lambda: listener.has_ended() or is_ready(sequence))
            if listener.end:
                raise listener.end.error or CutawayError("the model was closed")

        wait()
        yield sequence, wait


# -- of a bidirectional or block-causal model --------------------------------------------------

TextPositions = tuple[Ids, Ids]
"""A text, and the positions whose logits are wanted."""


def logits_at(llm: SyncLLM, texts: Sequence[TextPositions], *, adapter: str = "") -> list[Logits]:
    """Return a bidirectional model's logits at positions, (positions, vocab) for each text.

    texts: (token ids, positions) of each text. InputError for a causal model.
    """
    llm = llm.with_adapter(adapter)
    vocab, config = llm.tokenizer.vocab_size, llm.config
    rows = [tuple(max(i - config.shift, 0) for i in positions) for _, positions in texts]
    jobs = (
        (
            llm.request(ids, decoder=ScoreBidirectional(positions)),
            LogitsReader(len(positions), vocab, 0),
        )
        for (ids, _), positions in zip(texts, rows, strict=True)
    )
    logits = {i: reader.logits() for i, reader in iterate_ended(llm.owner, jobs)}
    return [logits[i] for i in range(len(texts))]


def likeliest_of_rows(logits: Logits, top: int) -> list[ReadRow]:
    """Return the ``top`` likeliest tokens of each row."""
    return [_sound(row) for row in read_rows(logits, [None] * len(logits), top)]


def logprob_of(logits: Logits, token_id: int) -> float:
    """Return the log-probability of a token under one row."""
    logprob = _sound(read_rows(np.atleast_2d(logits), [token_id], 0)[0]).logprob
    assert logprob is not None
    return logprob


def _sound(row: ReadRow | Exception) -> ReadRow:
    """Return the row; raise its error if its logits are not finite."""
    if isinstance(row, Exception):
        raise row
    return row
