"""Check the bits contract: compute one sample's logits in many ways, and compare their bits.

The checks vary the cuts of the prompt, the other sequences in the batch, the KV blocks and their
earlier contents, the number of threads and the instruction set.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Logits
from cutaway.engine.limits import last_seen, shares_blocks
from cutaway.engine.scheduled import lay_rows
from cutaway.errors import InputError

ROWS_PER_CALL = (1, 2, 3, 7, 8, 33, 257)
CUTS = ((31, 1, 32, 33), (128, 127, 1), (255, 1, 1, 2), (5, 64, 3, 100))
THREADS = (1, 2, 3, 5)
LENGTH = 300
"""Tokens of the text: enough that attention merges two chunks of 256 and most blocks are full."""

STRIDE = 3
"""Logits are compared at every third position and at the last."""

Load = Callable[[str, int], Backend]
"""Opens a backend for an instruction-set tier and a number of threads."""


Part = tuple[int, Iterable[int], list[int]]
"""A part of a batch: a sequence's first position, its tokens and its blocks."""


@dataclass(frozen=True, slots=True)
class BitsCheck:
    """One way to compute the text, compared with the plain one.

    varied, value: the varied condition, and its setting
    rows: logit rows compared; differing: how many of their rows · vocab · 32 bits differ
    control: whether the text had another first token; then bits must differ, or the check is blind
    """

    varied: str
    value: str
    rows: int
    differing: int
    control: bool = False

    @property
    def passed(self) -> bool:
        """Whether no bit differs; for the control, whether any bit differs."""
        return (self.differing > 0) == self.control

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and whether the check passed."""
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True, slots=True)
class BatchMate:
    """Another sequence in every batch: its tokens, its blocks, and its rows per call."""

    tokens: Sequence[int]
    blocks: Sequence[int]
    rows: int
    first: bool = False  # before the text in the batch, or after it


@dataclass(slots=True)
class Sample:
    """The text under test, its KV blocks, and its kind of attention, as in ``Limits``."""

    tokens: Sequence[int]
    blocks: Sequence[int]
    positions: frozenset[int] = field(default_factory=frozenset)  # whose logits are compared
    attention: str | int = "causal"

    def __post_init__(self) -> None:
        last = len(self.tokens) - 1
        self.positions = self.positions or frozenset((*range(0, last, STRIDE), last))

    def run(
        self, backend: Backend, cuts: Iterable[int] = (LENGTH,), mates: Sequence[BatchMate] = (),
        start: int = 0,
    ) -> Logits:  # fmt: skip
        """Compute logits (rows, vocab) of ``positions`` from ``start`` on, with the text forced.

        cuts: how many tokens of the text each call reads, repeated in a cycle
        """
        out, done = [], [0] * len(mates)
        sizes = chain.from_iterable(repeat(tuple(cuts)))
        while start < len(self.tokens):
            stop = self._stop(start + next(sizes))
            parts, text_index = self._parts(start, stop, mates, done)
            rows = lay_rows(parts)
            offset = int(np.count_nonzero(rows[2] < text_index))
            logit_rows = [offset + p - start for p in range(start, stop) if p in self.positions]
            limits = rows[1].copy()
            limits[offset : offset + stop - start] = [
                last_seen(self.attention, p, len(self.tokens)) for p in range(start, stop)
            ]
            batch = Batch(*rows, np.array(logit_rows, np.int32), limits)
            out.append(backend.run(batch).copy())
            start = stop
        return np.concatenate(out)

    def _stop(self, end: int) -> int:
        """Return the end of a call, ``end`` or later: tokens that see each other share a call."""
        length = len(self.tokens)
        return min(length, last_seen(self.attention, end - 1, length) + 1)

    def _parts(
        self, start: int, stop: int, mates: Sequence[BatchMate], done: list[int]
    ) -> tuple[list[Part], int]:
        """Return one call's sequences for ``lay_rows``, and the text's index among them."""
        before: list[Part] = []
        after: list[Part] = []
        for i, other in enumerate(mates):
            if tokens := other.tokens[done[i] : done[i] + other.rows]:
                side = before if other.first else after
                side.append((done[i], tokens, list(other.blocks)))
            done[i] += len(tokens)
        return [*before, (start, self.tokens[start:stop], list(self.blocks)), *after], len(before)


def differing_bits(a: Logits, b: Logits) -> int:
    """Count the bits that differ between two float32 arrays; ValueError for different shapes."""
    if a.shape != b.shape:
        raise ValueError(f"{a.shape} and {b.shape} logits cannot be compared")
    changes = (x.view(np.uint8) ^ y.view(np.uint8) for x, y in zip(a, b, strict=True))
    return sum(int(np.unpackbits(row).sum()) for row in changes)


def text_of(sample: Sequence[int], room: int) -> list[int]:
    """Repeat a sample to LENGTH tokens, or fewer, so that other sequences get half of the room."""
    length = min(LENGTH, room // 2 // KV_BLOCK * KV_BLOCK)
    if length < 1 or not sample:
        raise InputError(f"verify needs a context of at least {2 * KV_BLOCK} tokens")
    return (list(sample) * (length // len(sample) + 1))[:length]


def checks(
    load: Load,
    sample: Sequence[int],
    tiers: Sequence[str],
    threads: Sequence[int] = THREADS,
    attention: str | int = "causal",
) -> Iterator[BitsCheck]:
    """Run all checks, and yield each as soon as it is done.

    load: opens a backend whose KV blocks fit its context; one backend is open at a time
    sample: token ids, repeated to make the text
    tiers: the instruction sets to compare; the first is used for all other checks
    attention: as in ``Limits``; a text with bidirectional attention is not cut
    """
    backend = load(tiers[0], threads[0])
    tokens = text_of(sample, backend.kv_blocks * KV_BLOCK)
    text = Sample(tokens, range(-(-len(tokens) // KV_BLOCK)), attention=attention)
    plain = text.run(backend)
    yield from _one_backend(text, backend, plain)
    for count in threads[1:]:
        del backend
        backend = load(tiers[0], count)
        yield _check("threads", count, text.run(backend, [LENGTH]), plain)
        yield _check("threads", f"{count}, 7 rows per call", text.run(backend, [7]), plain)
    for tier in tiers[1:]:
        del backend
        backend = load(tier, max(threads[:2]))
        cuts = [max(1, len(tokens) - 3), 1, 1, 1]
        yield _check("instruction set", tier, text.run(backend, cuts), plain)


def _one_backend(text: Sample, backend: Backend, plain: Logits) -> Iterator[BitsCheck]:
    """Check cuts, other sequences in the batch, and KV blocks, on one backend."""
    tokens, blocks = text.tokens, len(text.blocks)
    for rows in ROWS_PER_CALL if text.attention != "bidirectional" else ():
        if rows < len(tokens):
            yield _check("rows per call", rows, text.run(backend, [rows]), plain)
    for cuts in CUTS if text.attention != "bidirectional" else ():
        yield _check("chunk boundaries", " ".join(map(str, cuts)), text.run(backend, cuts), plain)
    for value, mates, rows in neighbours(tokens, blocks, backend.kv_blocks):
        yield _check("neighbours", value, text.run(backend, [rows], mates), plain)
    for value, relocated in placements(text, backend):
        yield _check("KV blocks", value, relocated.run(backend, [33]), plain)
    half = len(tokens) // 2 // KV_BLOCK * KV_BLOCK
    if half and shares_blocks(text.attention):
        after = sum(position < half for position in text.positions)
        yield _check(
            "KV blocks", "saved, put elsewhere", run_restored(text, backend, half), plain[after:]
        )
    yield _check("again", "the same call", text.run(backend), plain)
    other = replace(text, tokens=[(tokens[0] + 1) % plain.shape[1], *tokens[1:]])
    control = _check("control", "another first token", other.run(backend), plain)
    yield replace(control, control=True)


def _check(varied: str, value: object, logits: Logits, plain: Logits) -> BitsCheck:
    return BitsCheck(varied, str(value), len(plain), differing_bits(logits, plain))


def neighbours(
    tokens: Sequence[int], blocks: int, kv_blocks: int
) -> Iterator[tuple[str, list[BatchMate], int]]:
    """Yield a name, sequences in blocks that the text leaves free, and the text's rows per call."""
    free = range(blocks, kv_blocks)
    half = len(free) // 2
    backwards = tokens[::-1]
    before = BatchMate(backwards[: half * KV_BLOCK], free[:half], 5, first=True)
    after = BatchMate(tokens[1 : (len(free) - half) * KV_BLOCK], free[half:], 1)
    if half:
        yield "one before", [before], 64
        yield "one before, decoding", [before], 1
    yield "one after", [after], 33
    if half:
        yield "both", [before, after], 7


def placements(text: Sample, backend: Backend) -> Iterator[tuple[str, Sample]]:
    """Yield a name, and the text in other blocks, which are full of another text's KV."""
    tokens, blocks = text.tokens, len(text.blocks)
    everywhere = list(range(backend.kv_blocks))
    orders = {
        "the last, backwards": everywhere[::-1][:blocks],
        "scrambled": np.random.default_rng(0).permutation(everywhere)[:blocks].tolist(),
    }
    for name, order in orders.items():
        for start in range(0, len(everywhere), blocks):  # another text's KV
            used = everywhere[start : start + blocks]
            Sample(tokens[::-1][: len(used) * KV_BLOCK], used).run(backend)
        yield name, replace(text, blocks=order)


def run_restored(text: Sample, backend: Backend, half: int) -> Logits:
    """Compute logits from ``half`` on, after the KV blocks before ``half`` were saved and moved."""
    tokens, blocks, everywhere = text.tokens, len(text.blocks), range(backend.kv_blocks)
    Sample(tokens[:half], everywhere[:blocks], attention=text.attention).run(backend)
    last = half // KV_BLOCK - 1
    memory = [backend.read_block(i) for i in everywhere[: last + 1]]
    saved = [[part.copy() for part in parts] for parts in memory]
    state = backend.read_state(everywhere[last])
    state = None if state is None else state.copy()
    order = everywhere[::-1][:blocks]
    for used in (everywhere[:blocks], order):
        Sample(tokens[::-1][: len(used) * KV_BLOCK], used).run(backend)
    for block, parts in zip(order, saved, strict=False):
        backend.write_block(block, parts)
    if state is not None:
        backend.write_state(order[last], state)
    return replace(text, blocks=order).run(backend, start=half)


@contextmanager
def instruction_set(tier: str) -> Iterator[None]:
    """Set CUTAWAY_ISA to a tier while a backend is opened; then restore it."""
    before = os.environ.get("CUTAWAY_ISA")
    os.environ["CUTAWAY_ISA"] = tier
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUTAWAY_ISA"]
        else:
            os.environ["CUTAWAY_ISA"] = before
