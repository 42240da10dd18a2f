"""The doctor: every figure against its definition, and what it does with a model's files."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.parts import open_as
from cutaway.errors import InputError
from cutaway.features.measure.doctor import (
    Damage,
    Doctor,
    ModelChange,
    Positions,
    TensorChoice,
    propose,
)
from cutaway.features.measure.doctor.findings import (
    bootstrap,
    compare_texts,
    map_of_tensors,
    place_of,
    prompts,
)
from cutaway.features.measure.doctor.reading import windows
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import MixedFile
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
TEXT = "ab ba abba b a " * 12
HOW = {"window": 64, "tokens": 150, "top": 5}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("doctor") / "base.gguf", **SHAPE)


@pytest.fixture(scope="module")
def quant(base):
    path = base.with_name("quant.gguf")
    with open_as(base, "q4_0") as file:
        write_gguf(path, file)
    return path


# -- the figures -----------------------------------------------------------------------------------


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def by_definition(one, other, texts, top):
    """The figures of two models, position by position."""
    kl, flipped, loss, overlap = [], [], [], []
    for ids in texts:
        rows = (log_softmax(llm.logits(ids)[:-1]) for llm in (one, other))
        for p, q, token in zip(*rows, ids[1:], strict=True):
            kl.append((np.exp(p) * (p - q)).sum())
            flipped.append(p.argmax() != q.argmax())
            loss.append(p[token] - q[token])
            best = ({*np.argsort(-x, kind="stable")[:top].tolist()} for x in (p, q))
            overlap.append(len(set.intersection(*best)) / top)
    return tuple(map(np.array, (kl, flipped, loss, overlap)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("change", [{"quantize": "q4_0"}, {"kv": "q4_0"}, {"quant": True}])
def test_every_figure_is_its_definition(base, quant, backend, change):
    if "quant" in change:
        change = {"quant": quant}
    with Doctor(base, TEXT, backend=backend, **HOW) as doctor:
        found = doctor.diagnose(ModelChange(**change)).damage
    named = {key: value for key, value in change.items() if key != "quant"}
    how = {"backend": backend, "context": 64}
    one, other = LLM(base, **how), LLM(change.get("quant", base), **how, **named)
    texts = windows(one.tokenize(TEXT)[:150], 64, one.tokenizer.bos_id)
    kl, flipped, loss, overlap = by_definition(one, other, texts, 5)
    assert found.positions == len(kl) == sum(len(ids) - 1 for ids in texts)
    np.testing.assert_allclose(found.kl.mean, kl.mean(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.kl_p99.mean, np.quantile(kl, 0.99), rtol=1e-6)
    np.testing.assert_allclose(found.kl_most, kl.max(), rtol=1e-6)
    assert found.flips.mean == flipped.mean()
    np.testing.assert_allclose(found.perplexity_ratio.mean, np.exp(loss.mean()), rtol=1e-6)
    assert found.overlap.mean == pytest.approx(overlap.mean())
    for each in (found.kl, found.kl_p99, found.flips, found.perplexity_ratio, found.overlap):
        assert each.low <= each.mean <= each.high
    assert found.kl.mean > 0


def test_no_change_costs_nothing(base):
    with Doctor(base, TEXT, **HOW) as doctor:
        found = doctor.diagnose(ModelChange(quant=base), draws=4, draw_tokens=6)
    assert found.damage.kl_most < 1e-12
    assert found.damage.flips.mean == 0
    assert found.damage.overlap.mean == found.damage.perplexity_ratio.mean == 1
    assert found.drawn.parted_at == (None,) * 4


def test_windows_have_every_token_once():
    ids = [1, *range(10, 40)]
    cut = windows(ids, 8, 1)
    assert all(each[0] == 1 and len(each) <= 8 for each in cut)
    assert [token for each in cut for token in each[1:]] == ids[1:]
    assert windows(ids, 8, None)[0] == tuple(ids[:8])
    assert windows([1], 8, 1) == []


# -- how sure they are -----------------------------------------------------------------------------


def test_an_interval_covers_the_mean_as_often_as_it_says():
    rng, mean = np.random.default_rng(1), lambda samples: samples.mean(axis=1)
    inside = 0
    for _ in range(60):
        noise = rng.normal(size=700)
        series = np.convolve(noise, np.ones(4) / 2, "valid")  # neighbours are alike
        found = bootstrap(series, mean)
        inside += found.low <= 0 <= found.high
    assert inside >= 50


def test_like_neighbours_make_an_interval_wider():
    rng, mean = np.random.default_rng(2), lambda samples: samples.mean(axis=1)
    alone = rng.normal(size=800)
    alike = np.repeat(rng.normal(size=100), 8)
    widths = [found.high - found.low for found in (bootstrap(x, mean) for x in (alone, alike))]
    assert widths[1] > 1.5 * widths[0]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40))
def test_any_number_of_positions_has_an_interval(values):
    kl = np.array(values)
    found = Damage.from_positions(Positions(kl, kl > 1, kl, np.ones(len(kl))), 3)
    assert found.kl.low <= found.kl.mean + 1e-9
    assert found.kl.mean <= found.kl.high + 1e-9
    assert Damage.from_dict(found.to_dict()) == found


# -- tensor by tensor ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("tied", [False, True])
def test_one_tensor_is_what_a_file_with_it_is(tmp_path, backend, tied):
    base = write_tiny_llama(tmp_path / "base.gguf", **SHAPE, tied=tied)
    llm, ids = LLM(base, backend=backend, prefix_cache=False), [3, 70, 80, 90, 100, 7]
    before = llm.logits(ids)
    with open_model(base) as own, open_as(base, "q8_0") as other:
        for name in [n for n, info in own.tensors.items() if len(info.shape) > 1]:
            mixed = MixedFile(own, {name: other})
            write_gguf(tmp_path / "mixed.gguf", mixed)
            twin = llm.backend.with_weights(mixed, {name})
            expected = LLM(tmp_path / "mixed.gguf", backend=backend).logits(ids)
            found = logits(twin, ids)
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), name)
            assert not np.array_equal(found, before)
            np.testing.assert_array_equal(logits(llm.backend, ids), before)


def logits(backend, ids):
    from cutaway.features.measure.doctor.reading import steps

    return np.concatenate([rows.copy() for _, rows in steps(backend, [(*ids, 0)])])


def test_each_tensor_is_measured_alone(base, quant):
    with Doctor(base, TEXT, **HOW) as doctor:
        costs = [*doctor.tensors(quant)]
        again = [*doctor.tensors(formats=["q4_0"])]
        assert sum(cost.saved for cost in costs) == doctor.nbytes - sum(
            info.nbytes for info in open_model(quant).tensors.values()
        )
    assert [cost.tensor for cost in costs] == [cost.tensor for cost in again]
    assert [cost.damage for cost in costs] == [cost.damage for cost in again]
    assert len(costs) == 2 * 7 + 2
    assert all(cost.damage.kl.mean > 0 and cost.base_format == "F32" for cost in costs)
    assert "blk.1.attn_q.weight: F32 to Q4_0" in map_of_tensors(costs, "a < b")
    assert "a &lt; b" in map_of_tensors(costs, "a < b")


def test_what_was_measured_is_not_measured_again(base, monkeypatch):
    text, stop = TEXT + "ab", []
    measured = []
    with Doctor(base, text, stopped=lambda: bool(stop), **HOW) as doctor:
        backend, real = type(doctor._llm.backend), doctor._llm.backend.with_weights

        def with_weights(_, file, names):
            measured.extend(names)
            return real(file, names)

        monkeypatch.setattr(backend, "with_weights", with_weights)
        first = next(doctor.tensors(formats=["q8_0"]))
        stop.append(True)
        with pytest.raises(KeyboardInterrupt):
            [*doctor.tensors(formats=["q8_0"])]
        stop.clear()
        measured.clear()
        every = [*doctor.tensors(formats=["q8_0"])]
        assert every[0] == first
        assert measured == [cost.tensor for cost in every[1:]]
        measured.clear()
        assert [*doctor.tensors(formats=["q8_0"])] == every
        assert measured == []


def test_a_record_that_was_cut_is_measured_again(base):
    with Doctor(base, "ba" + TEXT, **HOW) as doctor:
        record = doctor._record(None)
        every = [*doctor.tensors(formats=["q8_0"])]
        lines = record._path.read_bytes()
        record._path.write_bytes(lines[: len(lines) // 2])
        assert [*doctor.tensors(formats=["q8_0"])] == every


def test_places_of_tensors():
    assert place_of("blk.12.attn_q.weight") == ("attn_q", 12)
    assert place_of("token_embd.weight") == ("token_embd", None)


# -- mixes -----------------------------------------------------------------------------------------

MENUS = st.lists(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=3),
    min_size=1, max_size=4,
)  # fmt: skip


@given(MENUS, st.integers(0, 400))
def test_a_mix_fits_and_no_step_was_needless(menus, under):
    choices = [
        TensorChoice(f"t{t}", f"f{f}", nbytes, kl)
        for t, menu in enumerate(menus)
        for f, (nbytes, kl) in enumerate([(60, 0.0), *menu])
    ]
    of = {(c.tensor, c.format): c for c in choices}
    smallest = sum(min(c.nbytes for c in choices if c.tensor == f"t{t}") for t in range(len(menus)))
    if smallest + 10 > under:
        with pytest.raises(InputError, match="the smallest mix of these formats takes"):
            propose(choices, 10, under)
        return
    mix = propose(choices, 10, under)
    taken = [of[f"t{t}", mix.formats.get(f"t{t}", "f0")] for t in range(len(menus))]
    assert mix.nbytes == 10 + sum(c.nbytes for c in taken) <= under
    assert mix.kl == pytest.approx(sum(c.kl for c in taken))
    best = min(
        sum(c.kl for c in every)
        for every in itertools.product(
            *([c for c in choices if c.tensor == f"t{t}"] for t in range(len(menus)))
        )
        if 10 + sum(c.nbytes for c in every) <= under
    )
    assert mix.kl <= best + max(c.kl for c in choices) + 1e-9  # at most one step too many


def test_a_mix_is_written_and_is_what_was_proposed(base, tmp_path):
    with Doctor(base, TEXT, **HOW) as doctor:
        formats = ["q4_0", "q8_0"]
        costs = [*doctor.tensors(formats=formats)]
        mix = doctor.mix(costs, doctor.nbytes // 5)
        doctor.write(mix, tmp_path / "mix.gguf", formats=formats)
        found = doctor.diagnose(ModelChange(quant=tmp_path / "mix.gguf"))
    assert found.nbytes == mix.nbytes <= doctor.nbytes // 5
    with open_model(tmp_path / "mix.gguf") as file:
        assert {n: file.info(n).format for n in mix.formats} == mix.formats
        assert {*mix.formats.values()} == {"Q4_0", "Q8_0"}
    assert 0 < found.damage.kl.mean < 3 * mix.kl


# -- draws -----------------------------------------------------------------------------------------


def test_pairs_part_where_their_tokens_first_differ():
    found = compare_texts([(1, 2, 3), (1, 2), (5,)], [(1, 2, 4), (1, 2), (6,)], 3)
    assert found.parted_at == (2, None, 0)
    assert found.differ.mean == pytest.approx(2 / 3)


def test_prompts_are_spread_over_the_text():
    texts = [tuple(range(200)), tuple(range(1000, 1100))]
    begins = prompts(texts, 8, 64)
    assert len({*begins}) == 8
    assert all(len(ids) == 64 for ids in begins)
    assert begins[0][0] == 0
    assert begins[-1][0] > 999
    assert prompts([(1, 2, 3)], 2, 64) == [(1, 2, 3), (1, 2, 3)]


def test_drawn_pairs_are_what_each_model_writes(base):
    with Doctor(base, TEXT, **HOW) as doctor:
        found = doctor.diagnose(
            ModelChange(quantize="q4_0"), draws=6, draw_tokens=8, temperature=1.0
        ).drawn
        texts = doctor._texts
    assert found.texts == 6
    one, other = LLM(base, context=64), LLM(base, context=64, quantize="q4_0")
    for seed, (ids, at) in enumerate(zip(prompts(texts, 6, 32), found.parted_at, strict=True)):
        how = {"seed": seed, "max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
        a, b = (llm.generate([*ids], **how).token_ids for llm in (one, other))
        assert (a == b) == (at is None)
        if at is not None:
            assert a[:at] == b[:at]
            assert a[at : at + 1] != b[at : at + 1]


# -- refusals --------------------------------------------------------------------------------------


def test_what_cannot_be_examined_is_refused(base, quant, tmp_path):
    with Doctor(quant, TEXT, **HOW) as doctor:
        with pytest.raises(InputError, match=r"cutaway quantize .* twin.gguf --to f16"):
            doctor.diagnose(ModelChange(quantize="q8_0"))
        with pytest.raises(InputError, match=r"cutaway quantize .* twin.gguf --to f16"):
            next(doctor.tensors(formats=["q8_0"]))
    with Doctor(base, TEXT, **HOW) as doctor:
        with pytest.raises(InputError, match="give QUANT, or formats"):
            next(doctor.tensors())
        with pytest.raises(InputError, match="no tensor differs"):
            next(doctor.tensors(base))
        other = write_tiny_llama(tmp_path / "other.gguf", **SHAPE | {"feed_forward": 128})
        with pytest.raises(InputError, match="QUANT is no file of the same model"):
            [*doctor.tensors(other)]
    with pytest.raises(InputError, match="formats must be one of"):
        ModelChange(quantize="q9")
    with pytest.raises(InputError, match="kv must be one of"):
        ModelChange(kv="q9")
    with pytest.raises(InputError, match="no token that another predicts"):
        Doctor(base, "", **HOW)
