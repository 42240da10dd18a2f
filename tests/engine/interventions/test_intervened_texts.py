"""Changed texts of whole models: what is equal bit by bit, beside whom and however computed."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, CutawayError, InputError
from cutaway.compute.backends import Batch
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine.interventions import add, knock_out, patch, scale
from cutaway.engine.scheduled import lay_rows
from support.engine_mock import forget_cached
from support.native_plans import TIERS
from support.random_llama import VOCAB, write_tiny_llama

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.engine.interventions import bind, check_interventions
from cutaway.features.inside.look import inside
from cutaway.methods.rows import text_state
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_mamba2 import write_tiny_mamba2
from support.random_qwen35 import write_tiny_qwen35

PROMPT = [1, *np.random.default_rng(0).integers(3, VOCAB, 69).tolist()]
HOW = {"max_tokens": 20, "seed": 5, "temperature": 0.9, "ignore_eos": True}
SHAPE = {"heads": 4, "head_dim": 32, "kv_heads": 2}  # a head is a quant block
VECTOR = np.random.default_rng(1).normal(size=32)
PLACES = ["L0", "L1", "L0.attn", "L1.mlp", "L0.H0", "L1.H3"]
INTERVENTIONS = {
    "head": ["L1.H2 x 0"],
    "stream": [add("L0", VECTOR, 2.0)],
    "parts, some rows": [scale("L0.mlp", 0.5, positions="3-30,75"), scale("L1.attn", -1)],
    "one row": [patch("L0", VECTOR, positions=[71])],
    "knock_out": ["knock_out 3-40", "knock_out 60 from 4"],
    "all": [
        "L0.H1 x 2 at 20-99", add("L0", VECTOR, positions="40"), "knock_out 5", scale("L1", 1.5),
        add("L1.mlp", VECTOR, -1, from_step=2), patch("L0.attn", VECTOR, positions="74"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=["F32", "Q4_0", "reference"])
def llm(request, tmp_path_factory):
    backend = "reference" if request.param == "reference" else "cpu"
    format = "F32" if request.param == "reference" else request.param
    path = tmp_path_factory.mktemp(request.param) / "tiny.gguf"
    write_tiny_llama(path, format=format, **SHAPE)
    cache = backend == "cpu"  # the reference's bits depend on how many rows a step has
    with LLM(path, backend=backend, prefix_cache=cache) as made:
        yield made


def written(llm, interventions=(), prompt=PROMPT, **how):
    return llm.generate(prompt, interventions=interventions, **HOW | how)


def test_a_change_by_nothing_is_no_change(llm):
    plain = written(llm)
    for interventions in (
        [],
        [scale(place, 1) for place in PLACES],
        [add(place, VECTOR, 0) for place in PLACES],
        [scale("L0", 0, positions=[90, 200])],
        [scale("L0", 0, from_step=20)],
        ["knock_out 89-120"],
        ["knock_out 3-40 from 20"],
    ):
        assert written(llm, interventions).fingerprint == plain.fingerprint
    for interventions in INTERVENTIONS.values():
        assert written(llm, interventions).fingerprint != plain.fingerprint


@pytest.mark.parametrize("place", PLACES)
def test_a_patch_with_its_own_values_is_no_change(llm, place):
    """Also of another run: only this row's are there."""
    from cutaway.engine.interventions import find

    name, first, last = find(Anatomy(llm.graph), place)
    forget_cached(llm.engine.blocks)
    batch = Batch(*lay_rows([(0, PROMPT, [0, 1, 2])]), np.array([69], np.int32))
    _, tensors = llm.backend.tap(batch, [name])
    rows = tensors[name][:, first:last]
    own = [patch(place, rows[p], positions=[p]) for p in (3, 4, 17, 69)]
    assert written(llm, own).fingerprint == written(llm).fingerprint
    other = [patch(place, rows[5], positions=[p]) for p in (3, 4, 17, 69)]
    assert written(llm, other).fingerprint != written(llm).fingerprint


def without_columns(path, name, first, last, into):
    """A copy of a file with some columns of a matrix at zero."""
    reader = gguf.GGUFReader(path)
    raw = bytearray(path.read_bytes())
    tensor = next(t for t in reader.tensors if t.name == name)
    numbers = np.array(tensor.data)  # (rows, columns), or the bytes of each row
    numbers[:, first:last] = 0
    raw[tensor.data_offset : tensor.data_offset + tensor.n_bytes] = numbers.tobytes()
    into.write_bytes(raw)
    return into


PLAIN, CODES = {"heads": 6, "head_dim": 8}, {"format": "Q8_0", **SHAPE}


@pytest.mark.parametrize(
    ("backend", "shape", "head", "width"),
    [
        ("cpu", PLAIN, 0, 8), ("cpu", PLAIN, 3, 8), ("reference", PLAIN, 0, 8),
        ("reference", PLAIN, 3, 8),
        ("cpu", CODES, 2, 34),  # bytes: a head is a quant block, and the others' rounding their own
    ],
)  # fmt: skip
def test_a_head_at_zero_is_zeroed_columns(tmp_path, backend, shape, head, width):
    path, cut = write_tiny_llama(tmp_path / "whole.gguf", **shape), tmp_path / "cut.gguf"
    without_columns(path, "blk.1.attn_output.weight", head * width, (head + 1) * width, cut)
    with LLM(path, backend=backend) as whole, LLM(cut, backend=backend) as less:
        changed = written(whole, [scale(f"L1.H{head}", 0)])
        assert changed.fingerprint == written(less).fingerprint != written(whole).fingerprint


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_the_same_text_whatever_is_shared_and_beside_whom(llm, name):
    if llm.backend.name == "reference":
        pytest.skip("its bits depend on how many rows a step has")
    interventions, others = INTERVENTIONS[name], [PROMPT[:40], PROMPT, [1, 9, 9]]
    forget_cached(llm.engine.blocks)
    alone = written(llm, interventions).fingerprint
    plain = [written(llm, prompt=other).fingerprint for other in others]
    for options in ({"kv_cache": False}, {"speculate": "ngram"}, {}):
        forget_cached(llm.engine.blocks)
        with llm.stream(PROMPT, interventions=interventions, **HOW | options) as mine:
            beside = [llm.stream(other, **HOW) for other in others]
            beside.append(llm.stream(PROMPT, interventions=INTERVENTIONS["head"], **HOW))
            assert mine.finish().fingerprint == alone
            *unchanged, _ = [stream.finish().fingerprint for stream in beside]
            assert unchanged == plain
    again = written(llm, interventions)  # from the cache of all these
    assert again.fingerprint == alone
    assert again.usage.cached_tokens == 64
    first, second = llm.generate([PROMPT], interventions=interventions, n=2, **HOW)[0]
    assert first.fingerprint == alone != second.fingerprint


WHERE = {
    "positions": st.none() | st.sets(st.integers(0, 40), min_size=1),
    "from_step": st.none() | st.integers(0, 8),
}
FACTORS = st.sampled_from([0, 0.5, -1, 2])
SOME = st.lists(
    st.one_of(
        st.builds(scale, st.sampled_from(PLACES), FACTORS, **WHERE),
        st.builds(add, st.sampled_from(PLACES), st.just(VECTOR), FACTORS, **WHERE),
        st.builds(patch, st.sampled_from(PLACES), st.just(VECTOR), **WHERE),
        st.builds(knock_out, st.sets(st.integers(0, 40), min_size=1), from_step=WHERE["from_step"]),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=25)
@given(interventions=SOME, beside=SOME, length=st.integers(1, 40), cut=st.integers(1, 39))
def test_any_changes_alone_and_beside(llm, interventions, beside, length, cut):
    """Computed again from its first token at every step; and beside others, on what they left."""
    if llm.backend.name == "reference":
        return
    prompt, how = PROMPT[:length], {"max_tokens": 8}
    forget_cached(llm.engine.blocks)
    alone = written(llm, interventions, prompt, kv_cache=False, **how)
    with llm.stream(PROMPT[:40], interventions=interventions, **HOW) as first:
        next(first)  # which leaves keys and values of the same interventions, at other steps maybe
        streams = [
            llm.stream(ids, interventions=made, **HOW | how)
            for ids, made in ((prompt, interventions), (prompt, beside), (PROMPT[:cut], ()))
        ]
        found, *_ = [stream.finish() for stream in streams]
    assert found.fingerprint == alone.fingerprint


def test_the_same_text_on_any_tier_with_any_threads(tmp_path, monkeypatch):
    path = write_tiny_llama(tmp_path / "tiny.gguf", format="Q4_0", **SHAPE)
    found = set()
    for tier in TIERS:
        monkeypatch.setenv("CUTAWAY_ISA", tier)
        for threads in (1, 3):
            with LLM(path, threads=threads) as llm:
                found.add(tuple(written(llm, c).fingerprint for c in INTERVENTIONS.values()))
    assert len(found) == 1


def test_what_the_model_does_not_have(llm):
    for interventions, message in (
        (["L2 x 0"], "layers are 0 to 1"),
        (["L1.H4 x 0"], "heads are 0 to 3"),
        ([add("L1", VECTOR[:-1])], "has 32 numbers, not 31"),
        ([patch("L1.H0", np.zeros(31))], "has 32 numbers, not 31"),
        ("L1 x 0", "must be a list"),
    ):
        with pytest.raises(InputError, match=message):
            written(llm, interventions)


def test_numbers_beyond_float32_end_their_own_text(llm, recwarn):
    huge = [scale("L0", 1e38), add("L0", np.full(32, 3e38))]
    with llm.stream(PROMPT, interventions=huge, **HOW) as broken:
        beside = llm.stream([1, 9, 9], interventions=["L0.H1 x 0"], **HOW).finish()
        with pytest.raises(CutawayError, match="finite"):
            broken.finish()
    assert beside.finish_reason == "max_tokens"
    if llm.backend.name == "cpu":  # the reference warns, and its bits depend on a step's rows
        assert written(llm, ["L0.H1 x 0"], [1, 9, 9]).fingerprint == beside.fingerprint
        assert not recwarn.list


def test_a_saved_prefix_is_of_the_plain_text(tmp_path):
    with LLM(write_tiny_llama(tmp_path / "tiny.gguf")) as llm:
        written(llm, ["L0 x 0.5"])
        none = llm.save_prefix(tmp_path / "a.prefix", PROMPT, compute=False)
        plain = written(llm)
        all_of_it = llm.save_prefix(tmp_path / "b.prefix", PROMPT, compute=False)
        assert (len(none.token_ids), len(all_of_it.token_ids)) == (0, 64)
    with LLM(tmp_path / "tiny.gguf") as again:
        again.restore_prefix(tmp_path / "b.prefix")
        changed = written(again, ["L0 x 0.5"])
        assert changed.usage.cached_tokens == 0
        assert written(again).fingerprint == plain.fingerprint != changed.fingerprint


# -- changed states --------------------------------------------------------------------------------

# Recurrent states that are zeroed, scaled and replaced: what follows from them, bit by bit.


IDS = np.random.default_rng(3).integers(6, 60, 44).tolist()
OTHER = np.random.default_rng(4).integers(6, 60, 21).tolist()
CHANGES = {"max_tokens": 16, "temperature": 0.9, "seed": 4, "ignore_eos": True}
AT = 24  # inside a KV block
FAMILIES = [write_tiny_mamba2, write_tiny_qwen35, write_tiny_granite_hybrid, write_tiny_lfm2]


@pytest.fixture(scope="module", params=FAMILIES)
def path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("states") / "tiny.gguf")


@pytest.fixture(scope="module")
def hybrid(path):
    with LLM(path, progress=False) as made:
        yield made


def recurrent(hybrid):
    return [i for i, is_recurrent in enumerate(hybrid.config.recurrent) if is_recurrent]


def bound(hybrid, interventions):
    return bind(check_interventions(interventions), hybrid.graph, len(IDS))


def states_at(hybrid, position):
    """Half of one layer's state, and a vector in its place in another, after one row and later."""
    first, last = recurrent(hybrid)[0], recurrent(hybrid)[-1]
    size = len(state_of(hybrid, IDS, f"L{last}.S"))
    vector = np.random.default_rng(5).normal(size=size)
    spans = [position, position + 1, len(IDS) + 3]
    return [
        scale(f"L{first}.S", 0.5, positions=spans), patch(f"L{last}.S", vector, positions=position)
    ]  # fmt: skip


def state_of(hybrid, ids, where):
    from cutaway.compute.model.anatomy import Anatomy
    from cutaway.engine.interventions import find

    _, first, last = find(Anatomy(hybrid.graph), where)
    return text_state(hybrid, ids)[first:last]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_without_attention_a_state_is_all_that_is_known_of_a_text(tmp_path, backend):
    """At zero, the text begins after it; with that of another text, it goes on from there."""
    hybrid = LLM(write_tiny_mamba2(tmp_path / "tiny.gguf"), backend=backend, progress=False)
    equal = np.array_equal if backend == "cpu" else lambda a, b: np.allclose(a, b, atol=1e-4)
    places, rest = [f"L{i}.S" for i in recurrent(hybrid)], IDS[AT + 1 :]
    forgotten = bound(hybrid, [scale(place, 0, positions=AT) for place in places])
    assert equal(hybrid.logits(IDS, AT + 1, forgotten), hybrid.logits(rest))
    assert equal(hybrid.logits(IDS[: AT + 1], 0, forgotten), hybrid.logits(IDS[: AT + 1]))
    others = [patch(place, state_of(hybrid, OTHER, place), positions=AT) for place in places]
    expected = hybrid.logits(OTHER + rest, len(OTHER))
    assert equal(hybrid.logits(IDS, AT + 1, bound(hybrid, others)), expected)
    whole = hybrid.logits(IDS, AT + 1)
    assert not equal(whole, expected)
    assert not equal(hybrid.logits(IDS, AT + 1, bound(hybrid, others[:1])), expected)


@pytest.mark.parametrize("position", [AT, 31, len(IDS) - 1, len(IDS) + 5])
def test_the_same_text_in_every_way(path, hybrid, position):
    forget_cached(hybrid.engine.blocks)
    plain = hybrid.generate(IDS, **CHANGES)
    made = states_at(hybrid, position)
    alone = hybrid.generate(IDS, interventions=made, **CHANGES).fingerprint
    assert alone != plain.fingerprint
    ways = [{}, {"kv_cache": False}, {"speculate": "ngram"}, {"speculate": "jacobi"}]
    for way in ways:
        assert hybrid.generate(IDS, interventions=made, **CHANGES, **way).fingerprint == alone, way
    together = hybrid.generate([IDS, IDS[:33], IDS], interventions=made, **CHANGES)
    assert [together[0].fingerprint, together[2].fingerprint] == [alone, alone]
    assert hybrid.generate(IDS, **CHANGES).fingerprint == plain.fingerprint
    with LLM(path, progress=False, kv_tokens=128, context=96, threads=1) as small:
        found = small.generate([IDS] * 3, interventions=made, **CHANGES)  # one or two fit at once
    assert {one.fingerprint for one in found} == {alone}


def test_its_own_state_changes_no_bit_and_later_rows_alone_change(hybrid):
    plain = hybrid.generate(IDS, **CHANGES).fingerprint
    for layer in recurrent(hybrid):
        own = state_of(hybrid, IDS[: AT + 1], f"L{layer}.S")
        assert own.any()
        same = [patch(f"L{layer}.S", own, positions=AT), add(f"L{layer}.S", own, 0, positions="7")]
        assert hybrid.generate(IDS, interventions=same, **CHANGES).fingerprint == plain
        never = [scale(f"L{layer}.S", 0, positions=len(IDS) + CHANGES["max_tokens"] - 1)]
        assert hybrid.generate(IDS, interventions=never, **CHANGES).fingerprint == plain


def test_a_head_is_a_part_of_its_layers_state(hybrid):
    layer = recurrent(hybrid)[-1]
    whole = state_of(hybrid, IDS, f"L{layer}.S")
    if all(op.kind == "conv" for op in hybrid.graph.states):
        with pytest.raises(InputError, match=rf"no L{layer}.S1: that layer's state has no heads"):
            bound(hybrid, [f"L{layer}.S1 x 0"])
        return
    heads = [state_of(hybrid, IDS, f"L{layer}.S{i}") for i in range(4)]
    assert np.array_equal(np.concatenate(heads), whole[-sum(map(len, heads)) :])
    with pytest.raises(InputError, match=rf"no L{layer}.S4: the heads are 0 to 3"):
        bound(hybrid, [f"L{layer}.S4 x 0"])
    with pytest.raises(InputError, match=f"a vector for L{layer}.S1 has {len(heads[1])} numbers"):
        bound(hybrid, [patch(f"L{layer}.S1", heads[1][:-1])])


def test_a_layer_that_attends_has_no_state(tmp_path):
    llama = LLM(write_tiny_llama(tmp_path / "tiny.gguf"), progress=False)
    with pytest.raises(InputError, match=r"no L0\.S: that layer has no recurrent state"):
        llama.generate(IDS, interventions=["L0.S x 0 at 3"])


@pytest.mark.parametrize("name", ["scaled", "replaced", "all", "each row"])
def test_a_recorded_run_is_replayed_and_what_it_took_of_each_token_adds_up(hybrid, tmp_path, name):
    first = recurrent(hybrid)[0]
    vector = np.random.default_rng(6).normal(size=len(state_of(hybrid, IDS, f"L{first}.S")))
    here = len(IDS) + 1
    made = {
        "scaled": [f"L{first}.S x -0.5 at {AT},{here}"],
        "replaced": [patch(f"L{first}.S", vector, positions=here)],
        "all": states_at(hybrid, here),
        "each row": [f"L{first}.S x 0.25 from 2"],
    }[name]
    file = tmp_path / "run.jsonl"
    written = hybrid.generate(IDS, interventions=made, trace=file, **CHANGES)
    trace = Trace.read(file)
    assert [str(one) for one in trace.head.interventions] == [
        str(one) for one in check_interventions(made)
    ]
    found = replay(hybrid, trace)
    assert (found.same, found.fingerprint) == (True, written.fingerprint)
    look = inside(hybrid, trace, 4)
    assert look.is_as_run
    found = look.logit_attribution()  # CutawayError where heads and positions do not add up
    given = next(one for place, one in found.states.items() if place.startswith(f"L{first}."))
    assert given.positions[..., here + 1 :].any()
    if name == "replaced":
        assert not given.positions[..., : here + 1].any()
    own = [patch(f"L{i}.S", look) for i in recurrent(hybrid)]
    again = hybrid.generate(IDS, interventions=[*check_interventions(made), *own], **CHANGES)
    assert again.fingerprint == written.fingerprint
