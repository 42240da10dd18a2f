"""Recurrent states that are zeroed, scaled and replaced: what follows from them, bit by bit."""

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.engine.interventions import add, bind, check_interventions, patch, scale
from cutaway.errors import InputError
from cutaway.features.inside.look import inside
from cutaway.methods.rows import text_state
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.engine_mock import forget_cached
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_mamba2 import write_tiny_mamba2
from support.random_qwen35 import write_tiny_qwen35

IDS = np.random.default_rng(3).integers(6, 60, 44).tolist()
OTHER = np.random.default_rng(4).integers(6, 60, 21).tolist()
HOW = {"max_tokens": 16, "temperature": 0.9, "seed": 4, "ignore_eos": True}
AT = 24  # inside a KV block
FAMILIES = [write_tiny_mamba2, write_tiny_qwen35, write_tiny_granite_hybrid, write_tiny_lfm2]


@pytest.fixture(scope="module", params=FAMILIES)
def path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("states") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, progress=False) as made:
        yield made


def recurrent(llm):
    return [i for i, is_recurrent in enumerate(llm.config.recurrent) if is_recurrent]


def bound(llm, interventions):
    return bind(check_interventions(interventions), llm.graph, len(IDS))


def states_at(llm, position):
    """Half of one layer's state, and a vector in its place in another, after one row and later."""
    first, last = recurrent(llm)[0], recurrent(llm)[-1]
    size = len(state_of(llm, IDS, f"L{last}.S"))
    vector = np.random.default_rng(5).normal(size=size)
    spans = [position, position + 1, len(IDS) + 3]
    return [
        scale(f"L{first}.S", 0.5, positions=spans), patch(f"L{last}.S", vector, positions=position)
    ]  # fmt: skip


def state_of(llm, ids, where):
    from cutaway.compute.model.anatomy import Anatomy
    from cutaway.engine.interventions import find

    _, first, last = find(Anatomy(llm.graph), where)
    return text_state(llm, ids)[first:last]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_without_attention_a_state_is_all_that_is_known_of_a_text(tmp_path, backend):
    """At zero, the text begins after it; with that of another text, it goes on from there."""
    llm = LLM(write_tiny_mamba2(tmp_path / "tiny.gguf"), backend=backend, progress=False)
    equal = np.array_equal if backend == "cpu" else lambda a, b: np.allclose(a, b, atol=1e-4)
    places, rest = [f"L{i}.S" for i in recurrent(llm)], IDS[AT + 1 :]
    forgotten = bound(llm, [scale(place, 0, positions=AT) for place in places])
    assert equal(llm.logits(IDS, AT + 1, forgotten), llm.logits(rest))
    assert equal(llm.logits(IDS[: AT + 1], 0, forgotten), llm.logits(IDS[: AT + 1]))
    others = [patch(place, state_of(llm, OTHER, place), positions=AT) for place in places]
    expected = llm.logits(OTHER + rest, len(OTHER))
    assert equal(llm.logits(IDS, AT + 1, bound(llm, others)), expected)
    whole = llm.logits(IDS, AT + 1)
    assert not equal(whole, expected)
    assert not equal(llm.logits(IDS, AT + 1, bound(llm, others[:1])), expected)


@pytest.mark.parametrize("position", [AT, 31, len(IDS) - 1, len(IDS) + 5])
def test_the_same_text_in_every_way(path, llm, position):
    forget_cached(llm.engine.blocks)
    plain = llm.generate(IDS, **HOW)
    made = states_at(llm, position)
    alone = llm.generate(IDS, interventions=made, **HOW).fingerprint
    assert alone != plain.fingerprint
    ways = [{}, {"kv_cache": False}, {"speculate": "ngram"}, {"speculate": "jacobi"}]
    for way in ways:
        assert llm.generate(IDS, interventions=made, **HOW, **way).fingerprint == alone, way
    together = llm.generate([IDS, IDS[:33], IDS], interventions=made, **HOW)
    assert [together[0].fingerprint, together[2].fingerprint] == [alone, alone]
    assert llm.generate(IDS, **HOW).fingerprint == plain.fingerprint
    with LLM(path, progress=False, kv_tokens=128, context=96, threads=1) as small:
        found = small.generate([IDS] * 3, interventions=made, **HOW)  # one or two fit at once
    assert {one.fingerprint for one in found} == {alone}


def test_its_own_state_changes_no_bit_and_later_rows_alone_change(llm):
    plain = llm.generate(IDS, **HOW).fingerprint
    for layer in recurrent(llm):
        own = state_of(llm, IDS[: AT + 1], f"L{layer}.S")
        assert own.any()
        same = [patch(f"L{layer}.S", own, positions=AT), add(f"L{layer}.S", own, 0, positions="7")]
        assert llm.generate(IDS, interventions=same, **HOW).fingerprint == plain
        never = [scale(f"L{layer}.S", 0, positions=len(IDS) + HOW["max_tokens"] - 1)]
        assert llm.generate(IDS, interventions=never, **HOW).fingerprint == plain


def test_a_head_is_a_part_of_its_layers_state(llm):
    layer = recurrent(llm)[-1]
    whole = state_of(llm, IDS, f"L{layer}.S")
    if all(op.kind == "conv" for op in llm.graph.states):
        with pytest.raises(InputError, match=rf"no L{layer}.S1: that layer's state has no heads"):
            bound(llm, [f"L{layer}.S1 x 0"])
        return
    heads = [state_of(llm, IDS, f"L{layer}.S{i}") for i in range(4)]
    assert np.array_equal(np.concatenate(heads), whole[-sum(map(len, heads)) :])
    with pytest.raises(InputError, match=rf"no L{layer}.S4: the heads are 0 to 3"):
        bound(llm, [f"L{layer}.S4 x 0"])
    with pytest.raises(InputError, match=f"a vector for L{layer}.S1 has {len(heads[1])} numbers"):
        bound(llm, [patch(f"L{layer}.S1", heads[1][:-1])])


def test_a_layer_that_attends_has_no_state(tmp_path):
    llama = LLM(write_tiny_llama(tmp_path / "tiny.gguf"), progress=False)
    with pytest.raises(InputError, match=r"no L0\.S: that layer has no recurrent state"):
        llama.generate(IDS, interventions=["L0.S x 0 at 3"])


@pytest.mark.parametrize("name", ["scaled", "replaced", "all", "each row"])
def test_a_recorded_run_is_replayed_and_what_it_took_of_each_token_adds_up(llm, tmp_path, name):
    first = recurrent(llm)[0]
    vector = np.random.default_rng(6).normal(size=len(state_of(llm, IDS, f"L{first}.S")))
    here = len(IDS) + 1
    made = {
        "scaled": [f"L{first}.S x -0.5 at {AT},{here}"],
        "replaced": [patch(f"L{first}.S", vector, positions=here)],
        "all": states_at(llm, here),
        "each row": [f"L{first}.S x 0.25 from 2"],
    }[name]
    file = tmp_path / "run.jsonl"
    written = llm.generate(IDS, interventions=made, trace=file, **HOW)
    trace = Trace.read(file)
    assert [str(one) for one in trace.head.interventions] == [
        str(one) for one in check_interventions(made)
    ]
    found = replay(llm, trace)
    assert (found.same, found.fingerprint) == (True, written.fingerprint)
    look = inside(llm, trace, 4)
    assert look.is_as_run
    found = look.logit_attribution()  # CutawayError where heads and positions do not add up
    given = next(one for place, one in found.states.items() if place.startswith(f"L{first}."))
    assert given.positions[..., here + 1 :].any()
    if name == "replaced":
        assert not given.positions[..., : here + 1].any()
    own = [patch(f"L{i}.S", look) for i in recurrent(llm)]
    again = llm.generate(IDS, interventions=[*check_interventions(made), *own], **HOW)
    assert again.fingerprint == written.fingerprint
