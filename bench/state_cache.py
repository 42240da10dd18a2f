"""How the share of cached prompt tokens depends on the number of recurrent states that are kept.

    python bench/state_cache.py [--conversations 16] [--seed 0]

Conversations of a chat service's shape (routing_traces.py) run turn by turn, in the order of their
times, on the engine with a model that takes no time. A text continues from the last KV block that
has a state, so with fewer states more of a prompt is read again. The budget is that of Qwen 3.5
0.8B with room for ROOM tokens: states take no more memory than keys and values.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.compute.backends import KV_BLOCK, KVGroup, KVLayout, StateGroup
from routing_traces import Conversation, Shape, conversations
from script import grid, parser_of

TESTS = Path(__file__).resolve().parent.parent / "tests"
ROOM = 65_536  # tokens
_SHAPE = Shape(systems=5, question_tokens=140.0, answer_tokens=16.0, burst=0, longest=4096)
_QWEN = KVLayout(  # 6 layers attend, with 2 heads of 256; 18 have states: 16 matrices of 128 · 128
    KV_BLOCK, (KVGroup(tuple(range(6)), 0, "F16", 6 * 2 * 2 * 256 * 2),),
    StateGroup(tuple(range(18)), "F32", 18 * 4 * (16 * 128 * 128 + 3 * 6144)),
)  # fmt: skip


def parse() -> Namespace:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def turns_of(told: list[Conversation]) -> Iterator[tuple[Conversation, int]]:
    """Yield the turns of all conversations in the order of their times."""
    due = [
        (one.start_s + sum(turn.think_s for turn in one.turns[: i + 1]), one.number, one, i)
        for one in told
        for i in range(len(one.turns))
    ]
    for _, _, one, i in sorted(due, key=lambda each: each[:2]):
        yield one, i


def found_again(told: list[Conversation], kept: int | None, seed: int) -> float:
    """The share of prompt tokens found in the cache. kept: number of states; None: no states."""
    mock: Any = import_module("support.engine_mock")
    engine = mock.make_engine(
        context=8192, kv_blocks=ROOM // KV_BLOCK, has_state=kept is not None, rows=512
    )
    if kept is not None:
        engine.blocks.states.max_unread = kept
    texts: dict[int, tuple[int, ...]] = {}
    cached = asked = 0
    for one, i in turns_of(told):
        owner, length = one.parts[0]
        before = texts.get(one.number) or _drawn((seed, owner & 0xFFFF), length)
        prompt = before + _drawn((seed, one.number, i), one.turns[i].question)
        stops = mock.StopParams(max_tokens=one.turns[i].answer, ignore_eos=True)
        run = mock.MockRequest(prompt, stops=stops).finish(engine)
        texts[one.number] = prompt + tuple(run.written.token_ids)
        cached, asked = cached + run.sequence.num_cached_tokens, asked + len(prompt)
    return cached / asked


def _drawn(seed: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 256, count).tolist())


def main() -> None:
    args = parse()
    sys.path.insert(0, str(TESTS))
    told = conversations(_SHAPE, args.conversations / 600, 600, 1, args.seed)
    budget = _QWEN.kept_states(ROOM)
    ways = {
        "keys and values alone (no state)": None, "no budget: every state is kept": 1 << 30,
        f"the budget, {budget} states": budget, "a tenth of it": budget // 10, "none kept": 0,
    }  # fmt: skip
    rows = [(way, f"{found_again(told, kept, args.seed):.1%}") for way, kept in ways.items()]
    turns = sum(len(one.turns) for one in told)
    print(f"{len(told)} conversations, {turns} turns, room for {ROOM:,} tokens", file=sys.stderr)
    print(grid(("states kept for later texts", "of the prompts' tokens, found again"), rows))


if __name__ == "__main__":
    main()
