"""Models that come when they are used, and go: the same bits, and nothing is lost or left."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager, suppress

import pytest

from cutaway import LLM, CutawayError, InputError
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import ModelLoadError
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama
from support.waiting import poll_until

SETUP = Setup(context=64, kv_tokens=128, threads=1)
SAMPLED = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return [write_tiny_llama(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def alone(paths):
    """What each writes by itself."""

    def written(path):
        with LLM(path, context=64, kv_tokens=128, threads=1, progress=False) as llm:
            return [llm.generate("ab", seed=i, **SAMPLED).fingerprint for i in range(4)]

    return [written(path) for path in paths]


def opened(path, setup=SETUP):
    return LoadedModel.open(path, setup, progress=False, weights=False)


@asynccontextmanager
async def both(paths, limit=None, **more):
    """Two models; limit: how many of them may be there."""
    models = [opened(path) for path in paths]
    cache = ModelCache(limit and models[0].memory * limit, **more)
    first, second = (OnDemandLLM(model, cache) for model in models)
    async with first, second:
        yield first, second


async def written(llm):
    return [(await llm.generate("ab", seed=i, **SAMPLED)).fingerprint for i in range(4)]


async def gone(*llms):
    """Whether nobody uses them, once what was asked for has been done."""
    for _ in range(3):
        await asyncio.sleep(0)
    return all(llm.slot.users == 0 for llm in llms)


def states(*llms):
    return [llm.slot.state for llm in llms]


@pytest.mark.parametrize("limit", [None, 1])
async def test_each_writes_what_it_writes_alone_however_often_it_goes(paths, alone, limit):
    async with both(paths, limit) as llms:
        assert states(*llms) == ["absent", "absent"]
        for _ in range(2):
            for llm, expected in zip(llms, alone, strict=True):
                assert await written(llm) == expected
        together = await asyncio.gather(*(written(llm) for llm in llms * 2))
        assert together == alone * 2
        assert await gone(*llms)
        assert states(*llms).count("loaded") == (limit or 2)


async def test_nothing_is_left_in_memory_of_one_that_went(paths):
    async with both(paths, 1) as (first, second):
        await written(first)
        backend = weakref.ref(first.model.backend)
        await written(second)
        assert backend() is None
        with pytest.raises(InputError, match="opened without its weights"):
            _ = first.model.backend
        assert first.state().kv_blocks == 0


async def test_what_was_counted_is_counted_on(paths):
    async with both(paths, 1) as (first, second):
        for counted in (3, 6):
            await first.embed("ab")
            first._running.engine.engine.scheduler.preemptions += 3
            assert first.state().preemptions == counted
            await second.embed("ab")
            assert first.slot.state == "absent"
            assert first.state().preemptions == counted


async def test_a_running_text_is_waited_for(paths, alone):
    async with both(paths, 1) as (first, second):
        steps = first.stream("ab", seed=0, **SAMPLED)
        await anext(steps)
        other = asyncio.ensure_future(written(second))
        late = asyncio.ensure_future(written(first))
        [*_, last] = [step async for step in steps]
        assert f"{last.fingerprint:016x}" == alone[0][0]
        assert await other == alone[1]
        assert await late == alone[0]


async def test_vectors_and_what_is_asked_beside_use_it_too(paths):
    async with both(paths, 1) as (first, second):
        vectors = await first.embed(["ab", "b"])
        filled = await second.run_blocking(LLM.fill, "a[MASK]")
        assert states(first, second) == ["absent", "loaded"]
        assert await gone(first, second)
        again = await first.embed(["ab", "b"])
        assert (vectors.vectors == again.vectors).all()
        assert filled.to_dict() == (await second.run_blocking(LLM.fill, "a[MASK]")).to_dict()
        assert await gone(first, second)


async def test_who_drops_or_leaves_a_text_uses_it_no_more(paths):
    async with both(paths, idle_s=0) as (first, _):
        steps = first.stream("ab", seed=0, **SAMPLED)
        await anext(steps)
        await steps.aclose()
        generations = await first.submit(["ab"], first.parse(SAMPLED))
        del generations
        gc.collect()
        await poll_until(lambda: first.slot.state == "absent")


async def test_a_load_that_fails_is_told_and_the_others_go_on(paths, alone, tmp_path):
    lost = write_tiny_llama(tmp_path / "lost.gguf")
    async with both([lost, paths[1]], 1) as (first, second):
        path = lost.rename(tmp_path / "elsewhere.gguf")
        for _ in range(2):
            with pytest.raises(
                ModelLoadError, match="lost could not be loaded: lost cannot be read"
            ):
                await first.generate("ab")
        assert await written(second) == alone[1]
        path.rename(lost)  # which changes its time of change
        with pytest.raises(ModelLoadError, match="has changed since it was opened"):
            await first.generate("ab")
        assert await written(second) == alone[1]


async def test_a_load_ends_when_the_models_are_closed(paths, monkeypatch):
    loading, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    begun = LoadedModel.load

    def load(model, on_progress):
        def held(done):
            loop.call_soon_threadsafe(loading.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            on_progress(done)

        begun(model, held)

    monkeypatch.setattr(LoadedModel, "load", load)
    async with both(paths) as (first, _):
        asking = asyncio.ensure_future(first.generate("ab"))
        await loading.wait()
        first.close()
        go_on.set()
    assert not first.model.is_loaded
    with pytest.raises(CutawayError, match="the engine is closed"):
        await asking
    with pytest.raises(CutawayError, match="the engine is closed"):
        await first.generate("ab")


async def test_who_leaves_while_it_loads_stops_nobody(paths, alone):
    async with both(paths) as (first, _):
        leaves = asyncio.ensure_future(written(first))
        stays = asyncio.ensure_future(written(first))
        await poll_until(lambda: first.slot.state == "loading")
        leaves.cancel()
        assert await stays == alone[0]
        with suppress(asyncio.CancelledError):
            await leaves
        assert await gone(first)


async def test_prompts_are_read_without_weights(paths):
    async with both(paths) as (first, _):
        with pytest.raises(InputError, match="temperature"):
            await first.generate("ab", temperature=-1)
        with pytest.raises(InputError, match="context"):
            await first.generate("ab" * 1000)
        assert first.tokenize("ab")
        assert states(first) == ["absent"]


async def test_closing_frees_the_model_for_another_owner(paths):
    async with both(paths) as (first, second):
        await written(first)
    for llm in (first, second):
        assert not llm.alive
        assert not llm.model.is_loaded
        llm.model.claim("the test")


async def test_draining_waits_for_what_runs(paths, alone):
    async with both(paths) as (first, second):
        texts = await first.submit(["ab"], first.parse({"seed": 0, **SAMPLED}))
        assert await first.drain()
        [done] = await texts.finish()
        assert done.fingerprint == alone[0][0]
        assert await second.drain()


async def test_its_adapters_come_and_go_with_it(paths, tmp_path):
    how = {"adapters": {"poet": adapter_of(paths[0], tmp_path / "poet.gguf", seed=1)}}
    sizes = {"context": 64, "kv_tokens": 128, "threads": 1}
    with LLM(paths[0], **how, **sizes, progress=False) as llm:
        expected = [llm.generate("ab", seed=1, adapter=a, **SAMPLED) for a in (None, "poet")]
    prints = [done.fingerprint for done in expected]
    assert prints[0] != prints[1]
    model = opened(paths[0], Setup(**how, **sizes))
    async with OnDemandLLM(model, ModelCache(idle_s=0)) as llm:
        for _ in range(2):
            for adapter, known in zip((None, "poet"), prints, strict=True):
                done = await llm.generate("ab", seed=1, adapter=adapter, **SAMPLED)
                assert done.fingerprint == known
            await poll_until(lambda: llm.slot.state == "absent")


def test_a_draft_model_would_stay(paths):
    with pytest.raises(InputError, match="speculate: a draft model cannot serve"):
        OnDemandLLM(opened(paths[0]), ModelCache(), speculate="draft:smollm2")


async def test_one_that_is_loaded_at_the_start_goes_when_its_time_is_over(paths):
    model = opened(paths[0])
    model.load()
    async with OnDemandLLM(model, ModelCache(idle_s=0)) as llm:
        await poll_until(lambda: llm.slot.state == "absent")
        assert not model.is_loaded
