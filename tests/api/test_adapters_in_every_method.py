"""Every method that runs the model takes an adapter, with the bits of a model loaded with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, AsyncLLM
from cutaway.errors import InputError
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.adapters import LAYER, adapter_of

IDS = [1, *range(20, 90)]
DRAWN = {"seed": 1, "max_tokens": 6}


def columns(llm):
    return np.random.default_rng(0).normal(size=(2, llm.config.hidden)).astype(np.float32)


ASKED = {
    "logits": lambda llm, **a: llm.logits(IDS, 3, **a),
    "row": lambda llm, **a: llm.row(IDS, [llm.graph.ops[-1].out.name], {0: 2}, **a),
    "last_rows": lambda llm, **a: dict(llm.last_rows(IDS, [(IDS, None), (IDS[:9], None)], **a)),
    "head": lambda llm, **a: llm.head(columns(llm), **a),
    "embed": lambda llm, **a: llm.embed(["ab ba", "b"], **a),
    "score": lambda llm, **a: llm.score("ab", ["b", " ab"], **a),
    "score_each": lambda llm, **a: [*llm.score_each([("ab", "b"), ("b", " ab")], **a)],
    "likelihood": lambda llm, **a: llm.likelihood("ab ba ab", **a),
    "fill": lambda llm, **a: llm.fill("ab [MASK] ba", candidates=8, **a),
    "revise": lambda llm, **a: told(llm.revise("ab", "b ab a ab ba", seed=1, share=0.5, **a)),
    "revise of a draft": lambda llm, **a: told(llm.revise("ab", share=0.5, **DRAWN, **a)),
    "generate": lambda llm, **a: llm.generate("ab", **DRAWN, **a).fingerprint,
    "suffix": lambda llm, **a: llm.generate("ab", suffix=" ab", **DRAWN, **a).text,
    "generate_each": lambda llm, **a: only(llm.generate_each(["a"], **DRAWN, **a)),
    "stream": lambda llm, **a: llm.stream("ab", **DRAWN, **a).finish().fingerprint,
    "streams": lambda llm, **a: llm.streams("ab", **DRAWN, **a)[0].finish().fingerprint,
    "chat": lambda llm, **a: llm.chat([{"role": "user", "content": "ab"}], **DRAWN, **a).text,
}  # fmt: skip
ASKED_OF_WHOLE = {
    "logits": ASKED["logits"],
    "logits_at": lambda llm, **a: llm.logits_at([((4, 5, 6, 7), (1, 3))], **a),
    "embed": ASKED["embed"],
    "fill": ASKED["fill"],
    "pseudo_likelihood": lambda llm, **a: llm.pseudo_likelihood("ab ba", **a),
    "denoise": lambda llm, **a: llm.denoise("ab", seed=1, max_tokens=8, **a).fingerprint,
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
def llm(tiny_path, lora):
    with LLM(tiny_path, adapters={"poet": lora}, threads=2, progress=False) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tiny_path, lora):
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
        LLM(tiny_diffusion_path, lora=lora, **how) as alone,
    ):
        yield named, alone


@pytest.mark.parametrize("name", ASKED)
def test_the_bits_are_those_of_an_adapter_for_all(llm, alone, name):
    ask = ASKED[name]
    expected = ask(alone)
    assert same(ask(llm, adapter="poet"), expected)
    assert not same(ask(llm), expected)
    assert same(ask(llm.with_adapter("poet")), expected)


@pytest.mark.parametrize("name", ASKED_OF_WHOLE)
def test_also_of_a_model_that_sees_a_text_as_a_whole(whole, name):
    (llm, alone), ask = whole, ASKED_OF_WHOLE[name]
    expected = ask(alone)
    assert same(ask(llm, adapter="poet"), expected)
    assert not same(ask(llm), expected)


@pytest.mark.parametrize("name", ASKED)
def test_a_name_that_is_none_is_refused(llm, alone, name):
    for adapter, sentence in (("cook", "unknown adapter 'cook'; loaded: poet"), (7, "a string")):
        with pytest.raises(InputError, match=sentence):
            ASKED[name](llm, adapter=adapter)
    with pytest.raises(InputError, match="loaded: none"):
        ASKED["logits"](alone, adapter="poet")


@settings(max_examples=8, deadline=None)
@given(asked=st.lists(st.tuples(
    st.sampled_from(["", "poet"]), st.sampled_from(["logits", "embed", "score", "fill", "generate"])
), min_size=2, max_size=6), room=st.sampled_from([128, 512]))  # fmt: skip
def test_in_any_order_on_one_prefix_cache(tiny_path, lora, llm, asked, room):
    """What one asks leaves nothing that another takes for its own."""
    expected = {one: ASKED[one[1]](llm, adapter=one[0]) for one in set(asked)}
    with LLM(
        tiny_path, adapters={"poet": lora}, threads=2, context=128, kv_tokens=room, progress=False
    ) as mixed:
        for adapter, name in asked:
            assert same(ASKED[name](mixed, adapter=adapter), expected[adapter, name])


def test_a_saved_prefix_is_of_its_adapter(llm, alone, tiny_path, lora, tmp_path):
    saved = llm.save_prefix(tmp_path / "poet.kv", IDS, adapter="poet")
    assert llm.save_prefix(tmp_path / "plain.kv", IDS).token_ids == saved.token_ids
    by_name, for_all = (tmp_path / "poet.kv").read_bytes(), tmp_path / "alone.kv"
    alone.save_prefix(for_all, IDS)
    assert for_all.read_bytes() == by_name != (tmp_path / "plain.kv").read_bytes()
    with LLM(tiny_path, adapters={"poet": lora}, threads=2, progress=False) as other:
        assert other.restore_prefix(for_all, adapter="poet").cached_tokens == 64
        for adapter, cached in (("poet", 64), ("", 0)):
            done = other.generate(IDS, adapter=adapter, **DRAWN)
            assert done.usage.cached_tokens == cached
            expected = llm.generate(IDS, adapter=adapter, cache_prompt=False, **DRAWN)
            assert done.fingerprint == expected.fingerprint
        with pytest.raises(InputError, match="other weights"):
            other.restore_prefix(for_all)


def test_what_takes_an_llm_takes_one_under_an_adapter(llm, alone, tmp_path):
    llm.generate("ab ba", **DRAWN, adapter="poet", trace=tmp_path / "run.jsonl")
    trace, poet = Trace.read(tmp_path / "run.jsonl"), llm.with_adapter("poet")
    assert (poet.name, poet.model.identity) == (alone.name, alone.model.identity)
    assert replay(poet, trace).same
    theirs, ours = inside(alone, trace, 2), inside(poet, trace, 2)
    assert ours.is_as_run
    assert ours.logit_attribution().parts == theirs.logit_attribution().parts
    assert same(ours.weights, theirs.weights)
    assert ablate(poet, trace, 2).parts == ablate(alone, trace, 2).parts


def test_one_under_an_adapter_ends_with_its_model(tiny_path, lora):
    llm = LLM(tiny_path, adapters={"poet": lora}, progress=False)
    assert llm.with_adapter("") is llm
    with llm.with_adapter("poet") as poet:
        expected = poet.generate("ab", **DRAWN).fingerprint
    assert llm.generate("ab", adapter="poet", **DRAWN).fingerprint == expected
    for call in (lambda: poet.generate("ab", adapter="poet"), lambda: poet.with_adapter("poet")):
        with pytest.raises(InputError, match=r"tiny\+poet has one already"):
            call()
    with pytest.raises(InputError, match="give the model itself"):
        AsyncLLM(poet)
    llm.close()
    with pytest.raises(InputError, match="is closed"):
        poet.generate("ab")


async def test_for_tasks_likewise(tiny_path, lora, alone, whole, tmp_path):
    async with AsyncLLM(LLM(tiny_path, adapters={"poet": lora}, threads=2)) as llm:
        found = [each async for each in llm.score_each([("ab", "b")], adapter="poet")]
        assert found == [*alone.score_each([("ab", "b")])]
        for name in ("logits", "embed", "score", "likelihood", "fill"):
            assert same(await ASKED[name](llm, adapter="poet"), ASKED[name](alone)), name
        revised = await llm.revise("ab", "b ab a", seed=1, share=0.5, adapter="poet")
        assert told(revised) == told(alone.revise("ab", "b ab a", seed=1, share=0.5))
        await llm.save_prefix(tmp_path / "poet.kv", IDS, adapter="poet")
        assert (await llm.restore_prefix(tmp_path / "poet.kv", adapter="poet")).cached_tokens
        with pytest.raises(InputError, match="unknown adapter 'cook'"):
            await llm.fill("[MASK]", adapter="cook")
    alone.save_prefix(tmp_path / "alone.kv", IDS)
    named, expected = whole
    async with AsyncLLM(named) as llm:
        for name in ("pseudo_likelihood", "denoise"):
            given = ("ab ba",) if name == "pseudo_likelihood" else ("ab",)
            how = {} if name == "pseudo_likelihood" else {"seed": 1, "max_tokens": 8}
            theirs = getattr(expected, name)(*given, **how)
            ours = await getattr(llm, name)(*given, adapter="poet", **how)
            assert getattr(ours, "fingerprint", ours) == getattr(theirs, "fingerprint", theirs)
    assert (tmp_path / "alone.kv").read_bytes() == (tmp_path / "poet.kv").read_bytes()
