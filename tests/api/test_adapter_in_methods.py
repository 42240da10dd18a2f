"""Every method that runs the model takes an adapter, with the bits of a model loaded with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, AsyncLLM
from cutaway.errors import InputError
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.methods.rows import GivenText
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.adapters import LAYER, adapter_of

IDS = [1, *range(20, 90)]
DRAWN = {"seed": 1, "max_tokens": 6}


def columns(base):
    return np.random.default_rng(0).normal(size=(2, base.config.hidden)).astype(np.float32)


ASKED = {
    "logits": lambda base, **a: base.logits(IDS, 3, **a),
    "row": lambda base, **a: base.row(IDS, [base.graph.ops[-1].out.name], {0: 2}, **a),
    "last_rows": lambda base, **a: dict(
        base.last_rows(GivenText(IDS), [GivenText(IDS), GivenText(IDS[:9])], **a)
    ),
    "head": lambda base, **a: base.head(columns(base), **a),
    "embed": lambda base, **a: base.embed(["ab ba", "b"], **a),
    "score": lambda base, **a: base.score("ab", ["b", " ab"], **a),
    "score_each": lambda base, **a: [*base.score_each([("ab", "b"), ("b", " ab")], **a)],
    "likelihood": lambda base, **a: base.likelihood("ab ba ab", **a),
    "fill": lambda base, **a: base.fill("ab [MASK] ba", candidates=8, **a),
    "revise": lambda base, **a: told(base.revise("ab", "b ab a ab ba", seed=1, share=0.5, **a)),
    "revise of a draft": lambda base, **a: told(base.revise("ab", share=0.5, **DRAWN, **a)),
    "generate": lambda base, **a: base.generate("ab", **DRAWN, **a).fingerprint,
    "suffix": lambda base, **a: base.generate("ab", suffix=" ab", **DRAWN, **a).text,
    "generate_each": lambda base, **a: only(base.generate_each(["a"], **DRAWN, **a)),
    "stream": lambda base, **a: base.stream("ab", **DRAWN, **a).finish().fingerprint,
    "streams": lambda base, **a: base.streams("ab", **DRAWN, **a)[0].finish().fingerprint,
    "chat": lambda base, **a: base.chat([{"role": "user", "content": "ab"}], **DRAWN, **a).text,
}  # fmt: skip
ASKED_OF_WHOLE = {
    "logits": ASKED["logits"],
    "logits_at": lambda base, **a: base.logits_at([((4, 5, 6, 7), (1, 3))], **a),
    "embed": ASKED["embed"],
    "fill": ASKED["fill"],
    "pseudo_likelihood": lambda base, **a: base.pseudo_likelihood("ab ba", **a),
    "denoise": lambda base, **a: base.denoise("ab", seed=1, max_tokens=8, **a).fingerprint,
}


def only(results):
    """The one, which may be an error."""
    [(_, found)] = results
    if isinstance(found, InputError):
        raise found
    return found.fingerprint


def told(revised):
    """But what it took, in which a clock is."""
    return revised.model, revised.token_ids, revised.trials, revised.surprises


def same(found, expected):
    """Whether two answers are the same to the last bit."""
    if isinstance(expected, np.ndarray):
        return np.array_equal(found, expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[k], expected[k]) for k in found)
    if hasattr(expected, "vectors"):
        return same(found.vectors, expected.vectors)
    return found == expected


@pytest.fixture(scope="module")
def lora(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return adapter_of(tiny_path, folder / "poet.gguf", names=(*LAYER, "output"), seed=1)


@pytest.fixture(scope="module")
def base(tiny_path, lora):
    with LLM(tiny_path, adapters={"poet": lora}, threads=2, progress=False) as made:
        yield made


@pytest.fixture(scope="module")
def loaded_with_it(tiny_path, lora):
    with LLM(tiny_path, lora=lora, threads=2, progress=False) as made:
        yield made


@pytest.fixture(scope="module")
def whole(tiny_diffusion_path, tmp_path_factory):
    """A model that sees a text as a whole: with the adapter by name, and for all."""
    folder = tmp_path_factory.mktemp("adapters")
    lora = adapter_of(tiny_diffusion_path, folder / "poet.gguf", architecture="llada")
    how = {"threads": 2, "progress": False}
    with (
        LLM(tiny_diffusion_path, adapters={"poet": lora}, **how) as named,
        LLM(tiny_diffusion_path, lora=lora, **how) as loaded_with_it,
    ):
        yield named, loaded_with_it


@pytest.mark.parametrize("name", ASKED)
def test_the_bits_are_those_of_an_adapter_for_all(base, loaded_with_it, name):
    ask = ASKED[name]
    expected = ask(loaded_with_it)
    assert same(ask(base, adapter="poet"), expected)
    assert not same(ask(base), expected)
    assert same(ask(base.with_adapter("poet")), expected)


@pytest.mark.parametrize("name", ASKED_OF_WHOLE)
def test_also_of_a_model_that_sees_a_text_as_a_whole(whole, name):
    (base, loaded_with_it), ask = whole, ASKED_OF_WHOLE[name]
    expected = ask(loaded_with_it)
    assert same(ask(base, adapter="poet"), expected)
    assert not same(ask(base), expected)


@pytest.mark.parametrize("name", ASKED)
def test_a_method_refuses_a_name_that_is_none(base, loaded_with_it, name):
    for adapter, sentence in (("cook", "unknown adapter 'cook'; loaded: poet"), (7, "a string")):
        with pytest.raises(InputError, match=sentence):
            ASKED[name](base, adapter=adapter)
    with pytest.raises(InputError, match="loaded: none"):
        ASKED["logits"](loaded_with_it, adapter="poet")


@settings(max_examples=8, deadline=None)
@given(asked=st.lists(st.tuples(
    st.sampled_from(["", "poet"]), st.sampled_from(["logits", "embed", "score", "fill", "generate"])
), min_size=2, max_size=6), room=st.sampled_from([128, 512]))  # fmt: skip
def test_in_any_order_on_one_prefix_cache(tiny_path, lora, base, asked, room):
    """What one asks leaves nothing that another takes for its own."""
    expected = {one: ASKED[one[1]](base, adapter=one[0]) for one in set(asked)}
    with LLM(
        tiny_path, adapters={"poet": lora}, threads=2, context=128, kv_tokens=room, progress=False
    ) as mixed:
        for adapter, name in asked:
            assert same(ASKED[name](mixed, adapter=adapter), expected[adapter, name])


def test_a_saved_prefix_is_of_its_adapter(base, loaded_with_it, tiny_path, lora, tmp_path):
    saved = base.save_prefix(tmp_path / "poet.kv", IDS, adapter="poet")
    assert base.save_prefix(tmp_path / "plain.kv", IDS).token_ids == saved.token_ids
    by_name, for_all = (tmp_path / "poet.kv").read_bytes(), tmp_path / "alone.kv"
    loaded_with_it.save_prefix(for_all, IDS)
    assert for_all.read_bytes() == by_name != (tmp_path / "plain.kv").read_bytes()
    with LLM(tiny_path, adapters={"poet": lora}, threads=2, progress=False) as other:
        assert other.restore_prefix(for_all, adapter="poet").cached_tokens == 64
        for adapter, cached in (("poet", 64), ("", 0)):
            done = other.generate(IDS, adapter=adapter, **DRAWN)
            assert done.usage.cached_tokens == cached
            expected = base.generate(IDS, adapter=adapter, cache_prompt=False, **DRAWN)
            assert done.fingerprint == expected.fingerprint
        with pytest.raises(InputError, match="other weights"):
            other.restore_prefix(for_all)


def test_what_takes_an_llm_takes_one_under_an_adapter(base, loaded_with_it, tmp_path):
    base.generate("ab ba", **DRAWN, adapter="poet", trace=tmp_path / "run.jsonl")
    trace, poet = Trace.read(tmp_path / "run.jsonl"), base.with_adapter("poet")
    assert (poet.name, poet.model.identity) == (loaded_with_it.name, loaded_with_it.model.identity)
    assert replay(poet, trace).same
    theirs, ours = inside(loaded_with_it, trace, 2), inside(poet, trace, 2)
    assert ours.is_as_run
    assert ours.logit_attribution().parts == theirs.logit_attribution().parts
    assert same(ours.weights, theirs.weights)
    assert ablate(poet, trace, 2).parts == ablate(loaded_with_it, trace, 2).parts


def test_one_under_an_adapter_ends_with_its_model(tiny_path, lora):
    base = LLM(tiny_path, adapters={"poet": lora}, progress=False)
    assert base.with_adapter("") is base
    with base.with_adapter("poet") as poet:
        expected = poet.generate("ab", **DRAWN).fingerprint
    assert base.generate("ab", adapter="poet", **DRAWN).fingerprint == expected
    for call in (lambda: poet.generate("ab", adapter="poet"), lambda: poet.with_adapter("poet")):
        with pytest.raises(InputError, match=r"tiny\+poet has one already"):
            call()
    with pytest.raises(InputError, match="give the model itself"):
        AsyncLLM(poet)
    base.close()
    with pytest.raises(InputError, match="is closed"):
        poet.generate("ab")


async def test_for_tasks_likewise(tiny_path, lora, loaded_with_it, whole, tmp_path):
    async with AsyncLLM(LLM(tiny_path, adapters={"poet": lora}, threads=2)) as base:
        found = [each async for each in base.score_each([("ab", "b")], adapter="poet")]
        assert found == [*loaded_with_it.score_each([("ab", "b")])]
        for name in ("logits", "embed", "score", "likelihood", "fill"):
            assert same(await ASKED[name](base, adapter="poet"), ASKED[name](loaded_with_it)), name
        revised = await base.revise("ab", "b ab a", seed=1, share=0.5, adapter="poet")
        assert told(revised) == told(loaded_with_it.revise("ab", "b ab a", seed=1, share=0.5))
        await base.save_prefix(tmp_path / "poet.kv", IDS, adapter="poet")
        assert (await base.restore_prefix(tmp_path / "poet.kv", adapter="poet")).cached_tokens
        with pytest.raises(InputError, match="unknown adapter 'cook'"):
            await base.fill("[MASK]", adapter="cook")
    loaded_with_it.save_prefix(tmp_path / "alone.kv", IDS)
    named, expected = whole
    async with AsyncLLM(named) as base:
        for name in ("pseudo_likelihood", "denoise"):
            given = ("ab ba",) if name == "pseudo_likelihood" else ("ab",)
            how = {} if name == "pseudo_likelihood" else {"seed": 1, "max_tokens": 8}
            theirs = getattr(expected, name)(*given, **how)
            ours = await getattr(base, name)(*given, adapter="poet", **how)
            assert getattr(ours, "fingerprint", ours) == getattr(theirs, "fingerprint", theirs)
    assert (tmp_path / "alone.kv").read_bytes() == (tmp_path / "poet.kv").read_bytes()
