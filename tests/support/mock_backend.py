"""A backend whose model can be worked out by hand.

The logits at a row are a pure function of the tokens from 0 to that row. The mock knows
those tokens only from what it stored in KV blocks, so that wrong tables, forgotten rows
and shared blocks give wrong logits.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import shake_128
from itertools import pairwise

import numpy as np

from cutaway.compute.backends import HostSampling, KVGroup, KVLayout, StateGroup
from cutaway.compute.backends.base import put
from cutaway.text.grammar.compiler import GrammarCompiler

END = 256
VOCAB, WIDTH = 257, 5
LETTERS = [*b"ab", *"éè".encode(), END]
NEVER_WRITTEN = -7
NOT_SEEN = -8
AT = -9

Model = Callable[[tuple[int, ...]], np.ndarray]


def token_bytes(token_id: int) -> bytes:
    """Return a token's bytes: one byte, but "<end>" for the end token, which no text may show."""
    return b"<end>" if token_id == END else bytes([token_id])


class Words:
    """The tokens of the mock models, as a compiler of grammars reads them."""

    vocab_size, end_ids = VOCAB, (END,)
    bos_id: int | None = None

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])

    def token_name(self, token_id: int) -> str:
        return f"<{token_id}>"

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        return [*text.encode()]


COMPILER = GrammarCompiler(Words())


def GRAMMARS() -> GrammarCompiler:
    return COMPILER


# -- models: tokens 0 … t -> logits (VOCAB,) ---------------------------------------------------


def noise(tokens: tuple[int, ...]) -> np.ndarray:
    """Give all tokens random logits."""
    digest = shake_128(np.array(tokens, np.int32).tobytes()).digest(2 * VOCAB)
    return (np.frombuffer(digest, np.uint16).astype(np.float32) - 32768) / 8192


def narrow(tokens: tuple[int, ...]) -> np.ndarray:
    """Make almost only LETTERS likely: stop strings, split characters and ends are common."""
    logits = noise(tokens)
    logits[LETTERS] += 20
    return logits


def make_scripted(script: list[int], prompt_length: int) -> Model:
    """Return a model that writes the script after any prompt of that length, and then token 0."""

    def model(tokens: tuple[int, ...]) -> np.ndarray:
        logits, done = noise(tokens), len(tokens) - prompt_length
        logits[script[done] if 0 <= done < len(script) else 0] += 100
        return logits

    return model


def broken_after(tokens: tuple[int, ...], value: float) -> Model:
    """Return ``noise``, except that one logit after exactly these tokens is ``value``."""

    def model(history: tuple[int, ...]) -> np.ndarray:
        logits = noise(history)
        if history == tokens:
            logits[3] = value
        return logits

    return model


STATE_NUMBERS = 512
"""The length of a text before a state, and its tokens, which are shorter than that."""

# -- the backend -------------------------------------------------------------------------------


class MockBackend(HostSampling):
    """Keeps the tokens in KV blocks; checks that each Batch is as its docstring says.

    With a window the mock keeps tokens twice, and reads a row's last ones from blocks that the
    engine may release: a read that is too late or of another block changes the logits, or fails.
    If it tells places, the model also gets the position of a row that attends to later tokens.
    With states it reads the tokens before a sequence's rows from the sequence's state alone.
    """

    name = tier = "mock"
    threads = 0

    def __init__(
        self, kv_blocks: int, model: Model = noise, block: int = 32, window: int = 0,
        *, has_state: bool = False,
    ) -> None:  # fmt: skip
        self.kv_blocks, self.model, self.window = kv_blocks, model, window
        groups = [KVGroup((0,), 0, "tokens", 4), KVGroup((1,), window, "tokens", 4)]
        state = StateGroup((2,), "tokens", 4 * STATE_NUMBERS) if has_state else None
        self.block, self.kv = block, KVLayout(block, (*groups[: 2 if window else 1],), state)
        self.states: dict[int, tuple[int, ...]] = {}  # by slot, until the slot is released
        self.most_states = 0
        self.most_rows, self.tells_places = 512, False
        self.windows: dict[int, np.ndarray] = {}  # by block, until the block is released
        self.most_windows = 0
        self.slots = np.full((kv_blocks, self.block), NEVER_WRITTEN, np.int32)
        self.runs: list[int] = []
        self.failures = 0
        self._result: np.ndarray = np.empty(0, np.float32)

    def run(self, batch, changed=None):
        if self.failures:
            self.failures -= 1
            raise OSError("the mock was told to fail")
        self._check(batch)
        self.runs.append(len(batch.tokens))
        tokens = batch.tokens if changed is None else changed
        for row, token in enumerate(tokens):
            block, place = self._slot(batch, row, batch.positions[row])
            self.slots[block, place] = token
            if self.window:
                self.windows.setdefault(block, self._nothing())[place] = token
        self.most_windows = max(self.most_windows, len(self.windows))
        if self.kv.state:
            return self._hand_out(self._rows_with_state(batch, tokens))
        return self._hand_out([self._row(batch, r) for r in batch.logit_rows])

    def _row(self, batch, row) -> np.ndarray:
        history, position = self._history(batch, row), int(batch.positions[row])
        if not self.tells_places or batch.limits is None or batch.limits[row] == position:
            return self.model(history)
        return self.model((*history, AT, position))

    def _rows_with_state(self, batch, tokens) -> list[np.ndarray]:
        """Return the wanted rows, in order; store the states after all reads."""
        assert batch.states is not None
        asked_rows, rows, after = {*batch.logit_rows.tolist()}, [], {}
        history: tuple[int, ...] = ()
        for row, token in enumerate(tokens.tolist()):
            if row == 0 or batch.sequences[row] != batch.sequences[row - 1]:
                history = self._begin(batch, row)
            history = (*history, token)
            assert len(history) == batch.positions[row] + 1, "this is the state of another place"
            if row in asked_rows:
                rows.append(self.model(history))
            after[row] = history
        slots = [slot for _, slot in batch.states.tolist()]
        assert len({*slots}) == len(slots), "two states in one slot"
        self.states |= {slot: after[row] for row, slot in batch.states.tolist()}
        self.most_states = max(self.most_states, len(self.states))
        return rows

    def _begin(self, batch, row) -> tuple[int, ...]:
        before = int(batch.positions[row]) - 1
        if before < 0:
            return ()
        block, _ = self._slot(batch, row, before)
        assert block in self.states, f"the state of block {block} was let go of"
        return self.states[block]

    def copy_states(self, pairs) -> None:
        for source, target in pairs:
            if target == -1:
                self.states.pop(source, None)
            else:
                self.states[target] = self.states[source]

    def read_state(self, slot):
        if slot not in self.states:
            return None
        numbers = np.zeros(STATE_NUMBERS, np.int32)
        numbers[: 1 + len(self.states[slot])] = len(self.states[slot]), *self.states[slot]
        return numbers.view(np.uint8)

    def write_state(self, slot, state):
        length, *tokens = state.view(np.int32).tolist()
        self.states[slot] = tuple(tokens[:length])

    def hidden(self, batch):
        """Return the first WIDTH logits of each row as its hidden state."""
        return self.run(batch)[:, :WIDTH].copy()

    def with_graph(self, graph, file):
        raise NotImplementedError

    def run_whole(self, batch, names=()):
        """Return zeros for each row's hidden state."""
        return self.run(batch), np.zeros((len(batch.tokens), WIDTH), np.float32)

    def finish(self, x):
        """Return pooled rows unchanged."""
        return x

    def _slot(self, batch, row, position) -> tuple[int, int]:
        block = batch.block_tables[batch.sequences[row], position // self.block]
        assert 0 <= block < self.kv_blocks
        return block, position % self.block

    def _history(self, batch, row) -> tuple[int, ...]:
        limits = batch.positions if batch.limits is None else batch.limits
        positions = range(limits[row] + 1)
        seen = [int(self.slots[self._slot(batch, row, p)]) for p in positions]
        for p in positions[max(0, batch.positions[row] - self.window + 1) :] if self.window else ():
            block, place = self._slot(batch, row, p)
            assert block in self.windows, f"block {block} was let go of, and position {p} is seen"
            seen[p] = int(self.windows[block][place])
        if batch.hidden_from is not None:
            first = batch.hidden_from[batch.sequences[row]]
            seen = [NOT_SEEN if first[p] <= batch.positions[row] else t for p, t in enumerate(seen)]
        return tuple(seen)

    def _nothing(self) -> np.ndarray:
        return np.full(self.block, NEVER_WRITTEN, np.int32)

    def _hand_out(self, rows) -> np.ndarray:
        """Return read-only rows; the next call overwrites them with NaN, as the protocol allows."""
        self._result.flags.writeable = True
        self._result.fill(np.nan)
        self._result = np.array(rows, np.float32).reshape(len(rows), VOCAB)
        self._result.flags.writeable = False
        return self._result

    def _check(self, batch) -> None:
        for name in ("tokens", "positions", "sequences", "block_tables", "logit_rows"):
            assert getattr(batch, name).dtype == np.int32, name
        rows = len(batch.tokens)
        assert 1 <= rows <= self.most_rows
        assert len(batch.positions) == len(batch.sequences) == rows
        rows_of = [*zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True)]
        for (sequence, position), following in pairwise(rows_of):
            assert following == (sequence, position + 1) or following[0] == sequence + 1
        assert all(a < b for a, b in pairwise(batch.logit_rows.tolist()))
        tables = batch.block_tables.tolist()
        holders = Counter(block for table in tables for block in {*table} - {-1})
        for sequence, position in rows_of:
            block = tables[sequence][position // self.block]
            assert holders[block] == 1, f"sequence {sequence} writes into a block of another"

    def copy_blocks(self, pairs) -> None:
        sources, targets = zip(*pairs, strict=True)
        assert len({*targets} - {*sources}) == len(targets)
        for source, target in pairs:
            self.slots[target] = self.slots[source]
        self.copy_windows(pairs)

    def tap(self, batch, names, edits=()):
        assert not names  # there are no ops
        assert not edits
        return self.run(batch), {}

    def run_edited(self, batch, edits):
        """Apply edits to the only tensor: the token as a number, which is stored."""
        assert edits
        tokens = batch.tokens.astype(np.float32)[:, None]
        for edit in edits:
            assert edit.tensor == "token"
            tokens[edit.rows, edit.columns] = edit.change(tokens[edit.rows, edit.columns])
        return self.run(batch, tokens[:, 0].astype(np.int32))

    def head(self, x):
        raise NotImplementedError

    def with_adapter(self, graph, file):
        raise NotImplementedError

    def with_weights(self, file, names):
        raise NotImplementedError

    def keys_values(self, layer, table, first, last):
        raise NotImplementedError

    def weight(self, name, first=0, last=None):
        raise NotImplementedError

    def as_read(self, name, x):
        raise NotImplementedError

    def copy_windows(self, pairs) -> None:
        for source, target in pairs:
            if target == -1:
                self.windows.pop(source, None)
            elif source in self.windows:
                self.windows[target] = self.windows[source].copy()
            else:
                self.windows.pop(target, None)

    def write_block(self, block_id, pieces) -> None:
        whole = np.concatenate([*pieces])
        if self.window and len(whole) > self.slots[block_id].nbytes:
            self.windows.setdefault(block_id, self._nothing())
        put([whole], self.read_block(block_id))

    def read_block(self, block_id) -> list[np.ndarray]:
        assert 0 <= block_id < self.kv_blocks
        memory = [self.slots[block_id]]
        if block_id in self.windows:
            memory.append(self.windows[block_id])
        return [piece.view(np.uint8) for piece in memory]
