"""A model made by hand: its one head that looks back a token, and its one that copies, are found.

Each of 16 tokens is a direction. The first layer's head writes the direction of the token before
into a place of its own; the second's looks for that place with the direction of the token here, and
writes the token there: after a second "x" comes what came after the first.
"""

import gguf
import numpy as np
import pytest

from cutaway import LLM
from cutaway.features.inside import inside
from cutaway.features.inside.summary import heads
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama

TOKENS, HIDDEN, DIM = 16, 64, 32
HERE, BEFORE, ONE = slice(0, 16), slice(16, 32), 32  # places in the stream
TURNED, PLAIN = 16, slice(16, 32)  # of a head's numbers, how many have a position, and the rest
FIRST_ID = 3


def weights():
    """By tensor: of the norms ones, of all that is not named zeros."""
    code, turn = np.eye(TOKENS), 10000.0 ** (-np.arange(8) / 8)
    embedding = np.zeros((264, HIDDEN))
    embedding[FIRST_ID : FIRST_ID + TOKENS, HERE], embedding[:, ONE] = code, 1
    key, query, value, copy = (np.zeros((2 * DIM, HIDDEN)) for _ in range(4))
    key[0:TURNED:2, ONE] = 5
    query[0:TURNED:2, ONE], query[1:TURNED:2, ONE] = 5 * np.cos(turn), -5 * np.sin(turn)
    value[PLAIN, HERE] = code
    copy[BEFORE, PLAIN] = 0.2 * code  # of the stream, (HIDDEN, 2 * DIM)
    look_for, offer, write = (np.zeros((2 * DIM, HIDDEN)) for _ in range(3))
    look_for[PLAIN, HERE], offer[PLAIN, BEFORE] = 5 * code, 5 * code
    write[HERE, PLAIN] = code
    return {
        "token_embd": embedding, "output": 4 * embedding * (np.arange(HIDDEN) < TOKENS),
        "blk.0.attn_q": query, "blk.0.attn_k": key, "blk.0.attn_v": value,
        "blk.0.attn_output": copy, "blk.1.attn_q": look_for, "blk.1.attn_k": offer,
        "blk.1.attn_v": value, "blk.1.attn_output": write,
    }  # fmt: skip


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = tmp_path_factory.mktemp("induction") / "by-hand.gguf"
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": DIM, "hidden": HIDDEN, "layers": 2}
    write_tiny_llama(path, **sizes, metadata={"llama.rope.dimension_count": TURNED})
    made = weights()
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        name = tensor.name.removesuffix(".weight")
        tensor.data[...] = made.get(name, 1.0 if name.endswith("norm") else 0.0)
    return LLM(path)


@pytest.mark.parametrize("length", [2, 5, 8, 11])  # not 1: position 0 has none before it but itself
def test_the_heads_are_found_by_their_weights_and_attributions(llm, tmp_path, length):
    order = np.random.default_rng(length).permutation(TOKENS)[:12] + FIRST_ID
    prompt, expected = [*order.tolist(), *order[:length].tolist()], int(order[length])
    done = llm.generate(prompt, temperature=0, max_tokens=1, trace=tmp_path / "run.jsonl")
    assert [*done.token_ids] == [expected]
    look = inside(llm, Trace.read(tmp_path / "run.jsonl"), 0)
    found = look.logit_attribution()
    by_name = {(head.layer, head.head): head for head in heads(look, found)}
    assert by_name[0, 0].previous > 0.95
    assert by_name[1, 0].induction > 0.95
    assert max(h.induction for place, h in by_name.items() if place != (1, 0)) < 0.2
    assert max(h.previous for place, h in by_name.items() if place != (0, 0)) < 0.2
    assert max(found.parts, key=lambda name: abs(found.parts[name])) == "L1.attn"
    assert found.positions[1, 0].argmax() == length  # where it stood before
    assert found.heads[1, 0] > 0.95 * found.total
    assert look.lens(1).ids[:, 0].tolist() == [prompt[-1], prompt[-1], expected]
