"""--lora and serve's --adapter."""

import asyncio
import json

import pytest

from cutaway import LLM
from cutaway.api.model_cache import ModelCache
from cutaway.api.on_demand import OnDemandLLM
from cutaway.cli import served_models
from cutaway.cli.main import main
from cutaway.cli.parsed import model_options
from cutaway.cli.parser import Parser
from cutaway.cli.serve import add_arguments
from cutaway.cluster.plan import Plan
from cutaway.errors import InputError
from cutaway.loading.model import LoadedModel
from cutaway.loading.setup import Setup
from support.adapters import adapter_of

HOW = {"max_tokens": 8, "seed": 3, "ignore_eos": True}
FEW = ["--seed", "1", "--max-tokens", "6", "-q"]


@pytest.fixture(scope="module")
def lora(tiny_path, tmp_path_factory):
    return adapter_of(tiny_path, tmp_path_factory.mktemp("adapters") / "poet.gguf")


def test_a_run_with_an_adapter_is_replayed_with_it(tiny_path, lora, tmp_path, capsys):
    model, run = ["-m", str(tiny_path)], str(tmp_path / "run.jsonl")
    how = ["--lora", f"{lora}:0.5"]
    assert main(["generate", "ab", *FEW, *model, *how, "--json", "--trace", run]) == 0
    found = json.loads(capsys.readouterr().out)
    with LLM(tiny_path, adapters={"poet": f"{lora}:0.5"}) as llm:
        done = llm.generate("ab", adapter="poet", seed=1, max_tokens=6)
    assert found["fingerprint"] == done.fingerprint
    assert main(["trace", "replay", run, *model, *how, "-q"]) == 0
    assert main(["trace", "replay", run, *model, "--lora", str(lora), "-q"]) != 0
    assert main(["trace", "replay", run, *model, "-q"]) != 0
    assert "weights" in capsys.readouterr().err


def parsed(*words):
    parser = Parser("serve", "")
    add_arguments(parser)
    return parser.parse_args(words)


def served(*words):
    return model_options(parsed(*words))


def test_adapters_of_a_server_have_names(capsys):
    found = served("--adapter", "poet=a.gguf", "--adapter", "clerk=b=c:0.5")
    assert found["adapters"] == {"poet": "a.gguf", "clerk": "b=c:0.5"}
    for words in (["--adapter", "a.gguf"], ["--adapter", "=a"], ["--adapter", "a="],
                  ["--adapter", "a=b", "--adapter", "a=c"]):  # fmt: skip
        with pytest.raises((SystemExit, InputError)):
            served(*words)
    capsys.readouterr()


def test_replicas_are_told_where_the_files_are(tiny_path, lora, monkeypatch):
    monkeypatch.chdir(lora.parent)
    plan = Plan.of("2", 1, {"model": str(tiny_path), "lora": "poet.gguf"}, {})
    assert plan.model["lora"] == f"{lora}:1.0"
    plan = Plan.of("2", 1, {"model": str(tiny_path), "adapters": {"x": "poet.gguf:0.5"}}, {})
    assert plan.model["adapters"] == {"x": f"{lora}:0.5"}
    with pytest.raises(InputError, match="there is no file"):
        Plan.of("2", 1, {"model": str(tiny_path), "lora": "nowhere"}, {})


def test_several_models_have_none(tiny_path, lora):
    models = ["-m", f"a={tiny_path}", "-m", f"b={tiny_path}"]
    for how in (["--lora", str(lora)], ["--adapter", f"poet={lora}"]):
        with (
            pytest.raises(InputError, match="--lora and --adapter are for one model"),
            served_models.served(parsed(*models, *how), {}, print),
        ):
            pass


def test_one_that_is_loaded_when_it_is_used_has_its_adapters(tiny_path, lora):
    """And the bits of one that stays, whenever it comes."""

    async def main():
        model = LoadedModel.open(tiny_path, Setup(adapters={"poet": lora}), weights=False)
        async with OnDemandLLM(model, ModelCache(1 << 30, idle_s=0)) as llm:
            return [await llm.generate("ab", adapter="poet", **HOW) for _ in range(2)]

    with LLM(tiny_path, lora=lora) as llm:
        done = llm.generate("ab", **HOW)
    assert {one.fingerprint for one in asyncio.run(main())} == {done.fingerprint}
