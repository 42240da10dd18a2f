"""``--cache-dir``: a server that is started again has the prompts of the last, and says so."""

import httpx
import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.requests.store_settings import StoreSettings
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.served import serve, serve_all
from support.server_processes import server

SAID = "How are you? " * 12
MESSAGES = [{"role": "user", "content": SAID}]
TEXT = {"max_tokens": 1, "model": "tiny"}
ASKED = {
    "/v1/completions": {**TEXT, "prompt": SAID},
    "/v1/chat/completions": {**TEXT, "messages": MESSAGES},
    "/v1/messages": {**TEXT, "messages": MESSAGES},
    "/v1/responses": {"max_output_tokens": 1, "input": SAID},
}


def cached(url, path):
    answer = httpx.post(f"{url}{path}", json=ASKED[path], timeout=60)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    return details.get("cached_tokens", details.get("cache_read_input_tokens"))


def metrics(url):
    page = httpx.get(f"{url}/metrics", timeout=60).text
    lines = [line.rpartition(" ") for line in page.splitlines() if "disk_cache" in line]
    return {name.removeprefix("cutaway_disk_cache_"): value for name, _, value in lines}


@pytest.mark.parametrize("path", ASKED)
def test_usage_tells_what_a_server_before_has_read(tiny_path, tmp_path, path):
    for restarted in (False, True):
        llm = LLM(tiny_path, threads=1, cache_dir=tmp_path / "cache")
        with serve(llm, piped=False) as served:
            assert (cached(served.url, path) > 100) == restarted
            hits = float(metrics(served.url)["hit_tokens_total"])
            assert (hits > 100) == restarted


def test_a_server_that_is_stopped_leaves_all_that_it_read(tiny_path, tmp_path):
    """A process, with options, SIGTERM at once after the answer, and the metrics of the next."""
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "1GB")
    with server(tiny_path, *options) as (child, url):
        assert cached(url, "/v1/completions") == 0
        child.terminate()
        assert child.wait(300) == 0
    with server(tiny_path, *options) as (_, url):
        assert cached(url, "/v1/completions") > 100
        counts = metrics(url)
        assert float(counts["bytes"]) > float(counts["read_bytes_total"]) > 0
        assert float(counts["oldest_seconds"]) > 0
        assert counts["damaged_total"] == "0.0"


def test_a_model_that_is_unloaded_finds_its_prompts_when_it_is_loaded_again(tiny_path, tmp_path):
    store = StoreSettings(tmp_path)

    def models():
        model = LoadedModel.open(tiny_path, Setup(threads=1), progress=False, weights=False)
        return OnDemandLLM(model, ModelCache(None, idle_s=0), None, store)

    with serve_all(models) as served:
        assert cached(served.url, "/v1/completions") == 0
        assert cached(served.url, "/v1/completions") > 100
