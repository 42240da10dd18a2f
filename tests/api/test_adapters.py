"""Requests that name an adapter have the bits of a model that was loaded with it."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, AsyncLLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Request
from cutaway.engine.interventions import scale
from cutaway.errors import InputError
from cutaway.features.cluster.replica import Replica
from cutaway.features.cluster.wire import Job, OtherBitsError
from cutaway.requests.prepared import prepare
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama

PROMPT = [1, *range(20, 90)]  # more than two KV blocks
NAMES = ("", "one", "two")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    model = write_tiny_llama(
        folder / "tiny.gguf", layers=2, hidden=64, head_dim=16, format="Q8_0", context=256
    )
    one = adapter_of(model, folder / "one.gguf", seed=1)
    two = adapter_of(model, folder / "two.gguf", seed=2, rank=5, names=("attn_q", "ffn_down"))
    return model, {"one": one, "two": two}


@pytest.fixture(scope="module")
def alone(files):
    """What each adapter writes where it was loaded for all texts, without a cache."""
    model, adapters = files
    made = {}
    for name in NAMES:
        with LLM(model, lora=adapters.get(name), prefix_cache=False, threads=2) as llm:
            made[name] = {
                seed: llm.generate(PROMPT, seed=seed, max_tokens=24, ignore_eos=True)
                for seed in range(3)
            }
    return made


@pytest.fixture(scope="module")
def llm(files):
    model, adapters = files
    with LLM(model, adapters=adapters, threads=2) as made:
        yield made


def is_same(found, expected):
    assert found.token_ids == expected.token_ids
    assert found.fingerprint == expected.fingerprint


def test_adapters_write_other_texts(alone):
    assert len({made[0].fingerprint for made in alone.values()}) == 3


@settings(max_examples=12)
@given(data=st.data())
def test_bits_are_those_of_an_adapter_for_all(files, alone, data):
    """Together in any batch, cached or not, speculated, queued."""
    model, adapters = files
    asked = data.draw(st.lists(st.tuples(
        st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from(["off", "ngram", "jacobi"])
    ), min_size=1, max_size=6))  # fmt: skip
    cache, room = data.draw(st.booleans()), data.draw(st.sampled_from([128, 256, 1024]))
    with LLM(model, adapters=adapters, prefix_cache=cache, kv_tokens=room, threads=2) as llm:
        streams = [
            llm.stream(
                PROMPT, adapter=name, seed=seed, speculate=how, max_tokens=24, ignore_eos=True
            )
            for name, seed, how in asked
        ]
        left = list(streams)
        while left:
            left = [stream for stream in left if next(stream, None)]
        for (name, seed, _), stream in zip(asked, streams, strict=True):
            is_same(stream.completion(), alone[name][seed])


def test_one_that_is_sent_back_to_the_queue_is_computed_again_with_its_adapter(files, alone):
    model, adapters = files
    how = {"max_tokens": 24, "ignore_eos": True}
    with LLM(model, adapters=adapters, kv_tokens=128, threads=2) as llm:
        first = llm.stream(PROMPT, adapter="one", seed=0, priority=1, **how)
        for _ in range(5):
            next(first)
        second = llm.stream(PROMPT, adapter="two", seed=1, **how)
        is_same(second.finish(), alone["two"][1])
        assert llm.engine.scheduler.preemptions == 1
        is_same(first.finish(), alone["one"][0])


def test_the_reference_backend_has_them_too(files):
    model, adapters = files
    with LLM(model, adapters=adapters, backend="reference") as llm:
        found = llm.generate(PROMPT, adapter="one", seed=0, max_tokens=4)
    with LLM(model, lora=adapters["one"], backend="reference") as llm:
        is_same(found, llm.generate(PROMPT, seed=0, max_tokens=4))


def test_each_adapter_has_a_prefix_tree_of_its_own(files, alone):
    model, adapters = files
    with LLM(model, adapters=adapters, threads=2) as llm:
        for name in NAMES:
            first = llm.generate(PROMPT, adapter=name, seed=0, max_tokens=24, ignore_eos=True)
            again = llm.generate(PROMPT, adapter=name, seed=1, max_tokens=24, ignore_eos=True)
            assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 64)
            is_same(first, alone[name][0])
            is_same(again, alone[name][1])


def test_changes_are_made_of_what_the_adapter_computes(files, llm):
    model, adapters = files
    how = {"interventions": [scale("L1.mlp", 0.5)], "seed": 3, "max_tokens": 8}
    found = llm.generate(PROMPT, adapter="one", **how)
    with LLM(model, lora=adapters["one"], threads=2) as other:
        is_same(found, other.generate(PROMPT, **how))
        assert other.generate(PROMPT, seed=3, max_tokens=8).fingerprint != found.fingerprint


def test_a_trace_says_whose_bits_they_are(files, llm, tmp_path):
    model, adapters = files
    llm.generate(PROMPT, adapter="two", max_tokens=3, seed=1, trace=tmp_path / "by_request.jsonl")
    llm.generate(PROMPT, max_tokens=3, seed=1, trace=tmp_path / "plain.jsonl")
    with LLM(model, lora=adapters["two"], threads=2) as other:
        other.generate(PROMPT, max_tokens=3, seed=1, trace=tmp_path / "at_load.jsonl")
        names = ("by_request", "plain", "at_load")
        by_request, plain, at_load = (Trace.read(tmp_path / f"{name}.jsonl") for name in names)
        assert by_request.head.weights == at_load.head.weights != plain.head.weights
        assert by_request.head.model == at_load.head.model == "tiny+two"
        assert other.model.system_fingerprint == llm.model.with_adapter("two").system_fingerprint
        assert replay(other, by_request).same
    with pytest.raises(InputError, match="weights"):
        replay(llm, by_request)


@pytest.mark.parametrize("name", ["three", "one ", 7, ["one"]])
def test_a_name_that_is_none_is_refused(llm, name):
    with pytest.raises(InputError, match="adapter"):
        llm.generate(PROMPT, adapter=name)


def test_a_request_can_be_sent_and_is_refused_elsewhere(files, llm):
    model, _ = files
    options = llm.parse_options({"adapter": "one", "seed": 1})
    request = pickle.loads(pickle.dumps(prepare(llm, PROMPT, options).request))
    assert request == prepare(llm, PROMPT, options).request
    with LLM(model) as other, pytest.raises(InputError, match="not loaded"):
        other.engine.add(request)


def test_a_model_without_weights_knows_its_adapters(files):
    model, adapters = files
    setup = Setup(adapters=adapters)
    bare = LoadedModel.open(model, setup, weights=False)
    with LLM(LoadedModel.open(model, setup)) as llm:
        for name in adapters:
            assert bare.with_adapter(name).adapter == llm.model.with_adapter(name).adapter
            assert bare.with_adapter(name).identity == llm.model.with_adapter(name).identity


def test_closing_frees_all(files):
    model, adapters = files
    llm = LLM(model, adapters=adapters)
    llm.close()
    with pytest.raises(InputError, match="closed"):
        _ = llm.model.with_adapter("one").backend


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"lora": "a.gguf", "adapters": {"b": "b.gguf"}}, "one of the two"),
        ({"lora": "nowhere.gguf"}, "lora: there is no file or folder 'nowhere.gguf'"),
        ({"lora": "nowhere.gguf:0.5"}, "there is no file or folder 'nowhere.gguf'"),
        ({"lora": 7}, "lora must be FILE"),
        ({"adapters": {"": "a.gguf"}}, "1 to 200 characters"),
        ({"adapters": {"x": "nowhere"}}, "adapters: x: there is no file"),
        ({"adapters": ["a.gguf"]}, "names with their files"),
    ],
)
def test_what_cannot_be_loaded_is_said_at_once(files, how, sentence):
    with pytest.raises(InputError, match=sentence):
        LLM(files[0], **how)


def test_weights_that_come_later_have_their_adapters(files, alone, tmp_path):
    model, adapters = files
    mine = tmp_path / "one.gguf"
    mine.write_bytes(adapters["one"].read_bytes())
    bare = LoadedModel.open(model, Setup(adapters={"one": mine}), weights=False)
    with pytest.raises(InputError, match="without its weights"):
        _ = bare.with_adapter("one").backend
    for _ in range(2):
        bare.load()
        with LLM(bare) as llm:
            how = {"seed": 0, "max_tokens": 24, "ignore_eos": True}
            is_same(llm.generate(PROMPT, adapter="one", **how), alone["one"][0])
        bare.release()
    mine.write_bytes(adapters["two"].read_bytes())
    with pytest.raises(InputError, match="has changed since it was opened"):
        bare.load()


async def test_a_replica_without_the_adapter_is_not_asked(files):
    """It has the same weights, and says that it would compute other bits."""
    model, adapters = files
    front = LoadedModel.open(model, Setup(adapters=adapters), weights=False)
    replica = Replica(AsyncLLM(LLM(model, adapters={"one": adapters["one"]})), "r1")
    try:
        for name, fails in (("", False), ("one", False), ("two", True)):
            request = Request(prompt_token_ids=(1,), adapter=front.with_adapter(name).adapter)
            job = Job("1", ((request, 1),), replica.llm.model.computed_by, ("", 0))
            if fails:
                with pytest.raises(OtherBitsError, match="lacks the adapter"):
                    replica._check(job)
            else:
                replica._check(job)
    finally:
        await replica.close()
