"""Keys of a prompt's blocks are equal where the prefix cache shares them, and only there."""

from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutaway.compute.backends import KV_BLOCK
from cutaway.engine import Request, RunParams
from cutaway.engine.interventions import BoundInterventions
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.features.cluster.routing import block_keys, read_prompt
from cutaway.sampling import Observe

TEXTS = st.tuples(
    st.lists(st.integers(0, 1), max_size=5).map(lambda blocks: np.repeat(blocks, KV_BLOCK)),
    st.integers(0, KV_BLOCK - 1),
).map(lambda made: [*made[0].tolist(), *[7] * made[1]])
SALTS = st.none() | st.tuples(st.integers(0, 5 * KV_BLOCK), st.sampled_from("ab"))


@given(first=TEXTS, second=TEXTS, salt=SALTS, other=SALTS)
def test_keys_are_equal_where_the_prefix_cache_shares(first, second, salt, other):
    blocks = BlockManager(16, KV_BLOCK)
    held = blocks.allocate(len(first) // KV_BLOCK)
    blocks.publish(held, first, salt=salt)
    equal = [
        a == b for a, b in zip(block_keys(first, salt), block_keys(second, other), strict=False)
    ]
    shared = len(blocks.match(second, other))
    assert equal == [True] * shared + [False] * (len(equal) - shared)


def test_keys_are_the_same_in_every_process():
    ids = [*range(70)]
    key = b""
    expected = []
    for block in (ids[:32], ids[32:64]):
        data = key + b"".join(token.to_bytes(8, "little") for token in block)
        key = blake2b(data, digest_size=8).digest()
        expected.append(int.from_bytes(key, "little"))
    assert block_keys(ids) == tuple(expected)


def test_what_need_not_be_read():
    def read(tokens, attention="causal", **fields):
        return read_prompt(Request(prompt_token_ids=tuple(range(tokens)), **fields), 3, attention)

    keys = block_keys([*range(64)])
    assert read(64) == (keys, 1, 64, 3)  # the last token's logits are wanted
    assert read(65) == (keys, 2, 65, 3)
    assert read(65, observe=Observe(prompt_top=1)) == (keys, 0, 65, 3)
    assert read(65, run=RunParams(kv_cache=False)) == ((), 0, 65, 3)
    assert read(65, "all") == read(65, 64) == ((), 0, 65, 3)  # a block depends on what is behind
    assert read(65, 16) == (keys, 2, 65, 3)
    assert read(0) == ((), 0, 0, 3)
    changed = BoundInterventions(
        (), ((0, 3, 40),)
    )  # from position 40 on rows do not see the first tokens
    assert read(64, interventions=changed).keys[0] == keys[0]
    assert read(64, interventions=changed).keys[1] != keys[1]


def test_ids_that_are_no_tokens_have_no_keys():
    assert block_keys([2**70] * 32) == ()
