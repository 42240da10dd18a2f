"""A GPU that is lost in the middle of texts: clients are told, and a model is loaded again."""

import json

import httpx
import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import DeviceLostError
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.lost_device import SENTENCE, lose
from support.served import serve

BODY = {"prompt": "ab", "max_tokens": 20, "ignore_eos": True, "seed": 1}


def test_running_texts_and_later_ones_are_answered_with_503(tiny_path, monkeypatch):
    llm = LLM(tiny_path, threads=1, progress=False)
    with serve(llm) as served, httpx.Client(base_url=served.url, timeout=60) as http:
        assert http.get("/health").status_code == 200
        lose(llm.backend, 4, monkeypatch)
        streamed = http.post("/v1/completions", json=BODY | {"stream": True}).text.splitlines()
        events = [json.loads(line[6:]) for line in streamed if line.startswith("data: {")]
        assert len(events) > 2
        assert (events[-1]["error"]["code"], events[-1]["error"]["message"]) == (
            "device_lost", SENTENCE,
        )  # fmt: skip
        later = http.post("/v1/completions", json=BODY)
        assert (later.status_code, later.json()["error"]["code"]) == (503, "device_lost")
        for path in ("/health", "/ready"):
            assert http.get(path).status_code == 503, path


async def test_a_model_on_demand_is_loaded_again(tiny_path, monkeypatch):
    model = LoadedModel.open(tiny_path, Setup(threads=1), progress=False, weights=False)
    async with OnDemandLLM(model, ModelCache(None)) as llm:
        expected = await llm.generate("ab", max_tokens=6, seed=1, ignore_eos=True)
        lose(model.backend, 2, monkeypatch)
        with pytest.raises(DeviceLostError):
            await llm.generate("ab", max_tokens=6, seed=1, ignore_eos=True)
        again = await llm.generate("ab", max_tokens=6, seed=1, ignore_eos=True)
        assert again.fingerprint == expected.fingerprint
        assert llm.alive
