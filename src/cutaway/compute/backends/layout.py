"""What a backend keeps of a text: keys and values in KV blocks, recurrent states in slots.

Knows how many, and of how many bytes; not what is in them, nor who computes them.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from cutaway.compute.model import Graph

KV_BLOCK = 32
"""Tokens per KV block."""
STEP_ROWS = 512
"""The most rows of a step, where nothing else is said: bounds a long prompt's activations."""
DRAFT_STATES = 64
"""How many states there is room for beside those of KV blocks: after draft tokens."""
STATE_TOKENS = 512
"""A long text's state is kept after every so many tokens."""
_LEAST_STATES = 8


class KVGroup(NamedTuple):
    """Layers whose keys and values are stored alike.

    layers           their numbers in the graph
    window           the most tokens that one of them sees, the row's own included; 0: all
    format           of one number: "F16", "F32", "Q8_0"; "Q8_0,Q4_0" of keys and of values
    bytes_per_token  of all these layers together
    """

    layers: tuple[int, ...]
    window: int
    format: str
    bytes_per_token: int

    @property
    def format_in_words(self) -> str:
        """ "F16", or "Q8_0 (keys) and Q4_0 (values)"."""
        keys, _, values = self.format.partition(",")
        return f"{keys} (keys) and {values} (values)" if values else keys


class StateGroup(NamedTuple):
    """Layers that keep a recurrent state of a text, of one size whatever its length.

    layers  their numbers in the graph
    format  of one number: "F32"
    nbytes  of the states of all these layers together
    """

    layers: tuple[int, ...]
    format: str
    nbytes: int


class KVLayout(NamedTuple):
    """What a backend keeps of a text: keys and values, and perhaps a recurrent state.

    Keys and values are in blocks of ``block_tokens`` tokens, group by group: the layers that see
    the whole text are one group, those with a window another.
    """

    block_tokens: int
    groups: tuple[KVGroup, ...]
    state: StateGroup | None = None

    @property
    def bytes_per_token(self) -> int:
        """Of one token in all layers."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def window(self) -> int:
        """The widest window of any layer, in tokens; 0 where no layer has one."""
        return max((group.window for group in self.groups), default=0)

    def bytes_read(self, tokens: int) -> int:
        """Bytes that a row reads where it sees this many tokens, its own included."""
        return sum(g.bytes_per_token * min(tokens, g.window or tokens) for g in self.groups)

    def window_blocks(self, rows: int = STEP_ROWS) -> int:
        """How many KV blocks of a text are kept in the layers with a window: two windows.

        One is for the text itself, the other for a later text that continues from its prefix.
        rows: the most of one step, since blocks are freed between steps only
        """
        return 2 * (-(-max(self.window, rows) // self.block_tokens) + 1)

    def kept_states(self, tokens: int) -> int:
        """How many states are kept for later texts where keys and values of so many tokens fit.

        Two for each ``STATE_TOKENS``, but not more memory than keys and values take, and 8 at
        least.
        """
        if self.state is None:
            return 0
        affordable = self.bytes_per_token * tokens // self.state.nbytes
        return max(_LEAST_STATES, min(2 * tokens // STATE_TOKENS, affordable))

    def bytes_stored(self, tokens: int) -> int:
        """The most bytes that a text of this many tokens takes, in whole blocks.

        With its own state, that at the last block's end, and those that are kept for later texts.
        """
        blocks = -(-tokens // self.block_tokens)
        windows = min(blocks, self.window_blocks())
        each = (g.bytes_per_token * (windows if g.window else blocks) for g in self.groups)
        return self.block_tokens * sum(each) + self.state_bytes(tokens)

    def state_bytes(self, tokens: int) -> int:
        """Of these, those of states."""
        return (2 + self.kept_states(tokens)) * self.state.nbytes if self.state else 0

    def __str__(self) -> str:
        """All of it in words."""
        groups = (
            f"layers {_ranges(g.layers)} in {g.format_in_words}, {g.bytes_per_token} bytes a token"
            + (f", of the last {g.window} tokens" if g.window else "")
            for g in self.groups
        )
        state = self.state and (
            f"a state of layers {_ranges(self.state.layers)} in {self.state.format}, "
            f"{self.state.nbytes} bytes"
        )
        return "; ".join(filter(None, (f"blocks of {self.block_tokens} tokens", *groups, state)))


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as text: "0-3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def kv_groups(
    graph: Graph, format: str, bytes_of: Callable[[int, int, int], int]
) -> tuple[KVGroup, ...]:
    """A graph's groups.

    bytes_of: (kv_heads, head_dim, 2; or 1 where keys alone are stored) -> bytes of a token in one
    layer
    """
    attends = [op.attrs for op in graph.stores]
    groups = []
    for mine in ([a for a in attends if not a["window"]], [a for a in attends if a["window"]]):
        if mine:
            layers, window = tuple(a["layer"] for a in mine), max(a["window"] for a in mine)
            nbytes = sum(
                bytes_of(a["kv_heads"], a["head_dim"], 1 if "values_from" in a else 2) for a in mine
            )
            groups.append(KVGroup(layers, window, format, nbytes))
    return tuple(groups)


def state_group(graph: Graph) -> StateGroup | None:
    """Of the layers that keep a state in float32; None where none does."""
    ops = [op.attrs for op in graph.ops if "state" in op.attrs]
    if not ops:
        return None
    layers = tuple(dict.fromkeys(attrs["layer"] for attrs in ops))
    return StateGroup(layers, "F32", sum(4 * prod(attrs["state"]) for attrs in ops))
