"""The models of ``cutaway serve``: their names, the memory they share, and their adapters."""

import asyncio
import json
import signal

import httpx
import pytest

from cutaway import LLM
from cutaway.cli import serve, served_models
from cutaway.cli.options import arguments
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.features.cluster.plan import Plan
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from cutaway.server.service import names_of
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama
from support.server_processes import serve_arguments, server


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf")


def test_what_each_is_called(path):
    def named(*models):
        return served_models.named_models(
            serve_arguments(*(word for m in models for word in ("-m", m)))
        )

    assert named() == [("smollm2", "smollm2")]
    assert named(str(path)) == [(None, str(path))]
    assert named(f"own={path}") == [("own", str(path))]
    assert named("smollm2", f"own={path}") == [("smollm2", "smollm2"), ("own", str(path))]
    assert named("smollm2", str(path.parent))[1] == (None, str(path.parent))
    assert named(str(path.parent)) == [(None, str(path.parent))]
    assert named("a" * 5000) == [("a" * 5000, "a" * 5000)]
    odd = path.rename(path.parent / "a=b.gguf")
    assert named(str(odd)) == [(None, str(odd))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-m", "a=x", "-m", "a=y"], "two models have the name a: write NAME=PATH for one"),
        (["-m", "a b=x"], "write NAME=PATH, a name without spaces or slashes"),
        (["-m", "a="], "write NAME=PATH"),
        (["-m", "a", "-m", "b", "--served-model-name", "c"], "--served-model-name is for one"),
        (["-m", "a", "-m", "b", "--replicas", "2"], "--replicas is for one model that stays"),
        (["--memory", "8GB", "--replicas", "2"], "--replicas is for one model that stays"),
        (["--unload-after", "-1"], "--unload-after must be seconds, 0 or more"),
        (["--unload-after", "inf"], "--unload-after must be seconds, 0 or more"),
        (["-m", "a=x", "-m", "b", "--cores", "2"], "--cores is for replicas"),
    ],
)  # fmt: skip
def test_what_cannot_be(words, told):
    args = serve_arguments(*words, "-q")
    with pytest.raises(InputError, match=told):
        serve._settings(args)
        with served_models.open_models(args, {}, print):
            pass


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8_000_000_000), ("8g", 8_000_000_000), ("6GiB", 6 << 30), ("1.5 M", 1_500_000),
     ("100", 100), ("2KiB", 2048)],
)  # fmt: skip
def test_a_size_is_read_as_people_write_it(text, size):
    assert arguments.size(text) == size


@pytest.mark.parametrize("text", ["", "8X", "-1G", "0", "many"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(Exception, match="write a size as 8GB or 6GiB"):
        arguments.size(text)


def test_a_model_that_can_never_fit_is_refused_before_anything_is_loaded(path):
    args = serve_arguments("-m", f"a={path}", "-m", f"b={path}", "--memory", "1kB", "-q")
    told = r"memory: tiny takes .* with its keys and values, and all models together may have 1.0"
    with pytest.raises(InputError, match=told), served_models.open_models(args, {}, print):
        pass


def test_two_files_of_one_name_need_other_names(path):
    args = serve_arguments("-m", str(path), "-m", str(path), "-q")
    told = pytest.raises(InputError, match="two models have the name tiny")
    with told, served_models.open_models(args, {}, print):
        pass


def test_a_server_of_two_models_ends_at_a_signal(path):
    other = write_tiny_llama(path.parent / "other.gguf", seed=1)
    body = {"prompt": "ab", "seed": 1, "max_tokens": 5, "ignore_eos": True}
    with server(f"a={path}", "-m", f"b={other}", "--memory", "3MB") as (child, url):
        each = [
            httpx.post(f"{url}/v1/completions", json={**body, "model": name}).json()["choices"]
            for name in ("a", "b", "tiny", "other", "a")
        ]
        prints = [choices[0]["cutaway"]["fingerprint"] for choices in each]
        assert prints == [prints[0], prints[1], prints[0], prints[1], prints[0]]
        assert prints[0] != prints[1]
        child.send_signal(signal.SIGINT)
        assert child.wait(300) == 130


# -- --lora and --adapter --------------------------------------------------------------------------


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
    return [one.adapters for one in served_models.models(serve_arguments(*words))]


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
    assert [one.lora for one in served_models.models(serve_arguments(*words))] == [None, None, "4"]
    assert adapters("-m", "a=x", "--adapter", "p=1", "-m", "b=y", "--adapter", "p=2") == [
        {"p": "1"}, {"p": "2"}
    ]  # fmt: skip
    for how in (["--adapter", "poet=1"], ["--lora", "1"]):
        with pytest.raises(InputError, match="comes before each --model"):
            adapters(*how, "-m", "a=x", "-m", "b=y")


def test_replicas_get_the_paths_of_the_files(tiny_path, lora, monkeypatch):
    monkeypatch.chdir(lora.parent)
    plan = Plan.from_arguments("2", 1, {"model": str(tiny_path), "lora": "poet.gguf"}, {})
    assert plan.model["lora"] == f"{lora}:1.0"
    adapters = {"x": "poet.gguf:0.5"}
    plan = Plan.from_arguments("2", 1, {"model": str(tiny_path), "adapters": adapters}, {})
    assert plan.model["adapters"] == {"x": f"{lora}:0.5"}
    with pytest.raises(InputError, match="there is no file"):
        Plan.from_arguments("2", 1, {"model": str(tiny_path), "lora": "nowhere"}, {})


def test_each_of_several_models_has_its_own(tiny_path, lora):
    words = ["-m", f"a={tiny_path}", "--adapter", f"poet={lora}", "-m", f"b={tiny_path}",
             "--lora", f"{lora}:0.5", "-q"]  # fmt: skip
    with served_models.open_models(serve_arguments(*words), {}, print) as llms:
        assert [one.model.adapters for one in llms.values()] == [["poet"], []]
        assert llms["b"].name == "tiny+poet"
        names = names_of(llms, [])
        assert [one.all for one in names] == [("a", "tiny", "poet"), ("b", "tiny+poet")]
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
