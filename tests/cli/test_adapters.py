"""--lora and serve's --adapter."""

import asyncio
import json

import pytest

from cutaway import LLM
from cutaway.cli import serve
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.features.cluster.plan import Plan
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from cutaway.server.service import names_of
from support.adapters import adapter_of
from support.server_processes import serve_arguments

HOW = {"max_tokens": 8, "seed": 3, "ignore_eos": True}
FEW = ["--seed", "1", "--max-tokens", "6", "-q"]


@pytest.fixture(scope="module")
def lora(tiny_path, tmp_path_factory):
    return adapter_of(tiny_path, tmp_path_factory.mktemp("adapters") / "poet.gguf")


def test_a_run_with_an_adapter_is_replayed_with_it(tiny_path, lora, tmp_path, cutaway):
    model, run = ["-m", tiny_path], tmp_path / "run.jsonl"
    how = ["--lora", f"{lora}:0.5"]
    done = cutaway("generate", "ab", *FEW, *model, *how, "--json", "--trace", run)
    found = json.loads(done.out)
    with LLM(tiny_path, adapters={"poet": f"{lora}:0.5"}) as llm:
        done = llm.generate("ab", adapter="poet", seed=1, max_tokens=6)
    assert found["fingerprint"] == done.fingerprint
    replay = ["trace", "replay", run, *model, "-q"]
    assert cutaway(*replay, *how).code == 0
    assert cutaway(*replay, "--lora", lora).code != 0
    done = cutaway(*replay)
    assert done.code != 0 and "weights" in done.err


def adapters(*words):
    return [one.adapters for one in serve.models(serve_arguments(*words))]


def test_adapters_of_a_server_have_names():
    expected = {"poet": "a.gguf", "clerk": "b=c:0.5"}
    words = ["--adapter", "poet=a.gguf", "--adapter", "clerk=b=c:0.5"]
    for more in (words, [*words, "-m", "x"], ["-m", "x", *words]):
        assert adapters(*more) == [expected]
    wrong = ["--adapter a.gguf", "--adapter =a", "--adapter a=", "--adapter a=b --adapter a=c",
             "--lora a --lora b"]  # fmt: skip
    for words in map(str.split, wrong):
        with pytest.raises(InputError):
            adapters(*words)


def test_an_adapter_belongs_to_the_model_before_it():
    words = ["-m", "a=x", "--adapter", "poet=1", "-m", "b=y", "--adapter", "clerk=2",
             "--adapter", "cook=3", "-m", "c=z", "--lora", "4"]  # fmt: skip
    assert adapters(*words) == [{"poet": "1"}, {"clerk": "2", "cook": "3"}, {}]
    assert [one.lora for one in serve.models(serve_arguments(*words))] == [None, None, "4"]
    assert adapters("-m", "a=x", "--adapter", "p=1", "-m", "b=y", "--adapter", "p=2") == [
        {"p": "1"}, {"p": "2"}
    ]  # fmt: skip
    for how in (["--adapter", "poet=1"], ["--lora", "1"]):
        with pytest.raises(InputError, match="comes before each --model"):
            adapters(*how, "-m", "a=x", "-m", "b=y")


def test_replicas_get_the_paths_of_the_files(tiny_path, lora, monkeypatch):
    monkeypatch.chdir(lora.parent)
    plan = Plan.of("2", 1, {"model": str(tiny_path), "lora": "poet.gguf"}, {})
    assert plan.model["lora"] == f"{lora}:1.0"
    plan = Plan.of("2", 1, {"model": str(tiny_path), "adapters": {"x": "poet.gguf:0.5"}}, {})
    assert plan.model["adapters"] == {"x": f"{lora}:0.5"}
    with pytest.raises(InputError, match="there is no file"):
        Plan.of("2", 1, {"model": str(tiny_path), "lora": "nowhere"}, {})


def test_each_of_several_models_has_its_own(tiny_path, lora):
    words = ["-m", f"a={tiny_path}", "--adapter", f"poet={lora}", "-m", f"b={tiny_path}",
             "--lora", f"{lora}:0.5", "-q"]  # fmt: skip
    with serve.served(serve_arguments(*words), {}, print) as llms:
        assert [one.model.adapters for one in llms.values()] == [["poet"], []]
        assert llms["b"].name == "tiny+poet"
        names = names_of(llms, [])
        assert [one.every for one in names] == [("a", "tiny", "poet"), ("b", "tiny+poet")]
        with LLM(tiny_path, lora=f"{lora}:0.5") as llm:
            assert llms["b"].model.identity == llm.model.identity
        for llm in llms.values():
            asyncio.run(llm.aclose())


def test_a_model_loaded_on_demand_has_its_adapters(tiny_path, lora):
    """With the same bits as one that stays loaded, however often it is loaded."""

    async def main():
        model = LoadedModel.open(tiny_path, Setup(adapters={"poet": lora}), weights=False)
        async with OnDemandLLM(model, ModelCache(1 << 30, idle_s=0)) as llm:
            return [await llm.generate("ab", adapter="poet", **HOW) for _ in range(2)]

    with LLM(tiny_path, lora=lora) as llm:
        done = llm.generate("ab", **HOW)
    assert {one.fingerprint for one in asyncio.run(main())} == {done.fingerprint}
