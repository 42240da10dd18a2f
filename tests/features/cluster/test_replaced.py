"""Replicas that are replaced, and machines that go, while texts are written: real processes."""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
from contextlib import asynccontextmanager, closing
from socket import socket

import httpx
import pytest

from cutaway import LLM
from cutaway.errors import CutawayError, InputError
from cutaway.features.cluster.launch import launch
from cutaway.features.cluster.plan import Plan
from support.random_llama import write_tiny_llama
from support.waiting import poll_until

serve = pytest.importorskip("ray.serve", reason="needs ray: pip install '.[test-ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own, in this process
ASKED = {"max_tokens": 400, "temperature": 0.9, "seed": 7, "ignore_eos": True}
PROMPTS = [f"Once upon a {word}" for word in ("time", "bridge", "hill", "cat")]


@pytest.fixture(scope="module")
def own(tiny_path):
    """What one engine alone writes."""
    with LLM(tiny_path, threads=1, progress=False) as llm:
        done = [llm.generate(prompt, **ASKED) for prompt in PROMPTS]
        return [(one.text, one.fingerprint) for one in done]


@pytest.fixture
def cluster():
    """Two nodes of a core each; the first is the head."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.second = made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def pids(caplog):
    """The process of each replica, as the log has them."""
    caplog.set_level(logging.INFO, "cutaway.server")

    def found():
        told = [record.fields for record in caplog.records if record.msg == "%s"]
        return {one["replica"]: one["pid"] for one in told if "pid" in one}

    return found


class Load:
    """Texts that are asked for one after the other, as long as this is open."""

    def __init__(self, llm, own) -> None:
        self.llm, self.own, self.done, self.resumed = llm, own, 0, 0
        self.over = asyncio.Event()

    async def ask(self, which: int) -> None:
        while not self.over.is_set():
            submitted = await self.llm.submit([PROMPTS[which]], self.llm.parse(ASKED))
            (text,) = await submitted.finish()
            assert (text.text, text.fingerprint) == self.own[which]
            self.done += 1
            self.resumed += submitted.route.resumed


@asynccontextmanager
async def load(llm, own):
    made = Load(llm, own)
    tasks = [asyncio.create_task(made.ask(i % len(own))) for i in range(6)]
    await poll_until(lambda: made.done)
    try:
        yield made
    finally:
        made.over.set()
        await asyncio.gather(*tasks)


def test_a_rolling_update_breaks_no_stream(cluster, tiny_path, own):
    from cutaway.features.cluster.serving import engines

    async def run(llm):
        async with llm, load(llm, own) as texts:
            (name,) = serve.status().applications
            plan = Plan.from_arguments("2", 1, {"model": str(tiny_path), "max_num_seqs": 32}, {})
            await asyncio.to_thread(
                serve.run, engines(plan, "causal"), name=name, route_prefix=None
            )
            before = texts.done
            await poll_until(lambda: texts.done > before)
        return texts

    plan = Plan.from_arguments("2", 1, {"model": str(tiny_path)}, {})
    with launch(plan, cluster.address, progress=False) as llm:
        texts = asyncio.run(run(llm))
    assert texts.resumed > 0


def test_no_text_is_lost_with_a_machine(cluster, tiny_path, own):
    async def run(llm):
        async with llm, load(llm, own) as texts:
            await asyncio.to_thread(cluster.remove_node, cluster.second, allow_graceful=False)
            await asyncio.sleep(3)
            cluster.add_node(num_cpus=1)
            await asyncio.sleep(8)
        return texts

    plan = Plan.from_arguments("2", 1, {"model": str(tiny_path)}, {})
    with launch(plan, cluster.address, progress=False) as llm:
        texts = asyncio.run(run(llm))
    assert texts.resumed > 0


def test_a_replica_with_another_model_continues_no_text(tmp_path, tiny_path, own, pids):
    """The file becomes another one, and each replica that starts from then on has that."""
    path = tmp_path / "served.gguf"
    shutil.copy(tiny_path, path)
    other = write_tiny_llama(tmp_path / "other.gguf", context=512, seed=5)

    async def run(llm):
        async with llm:
            text = await llm.generate(PROMPTS[0], **ASKED)
            assert (text.text, text.fingerprint) == own[0]
            other.replace(path)
            submitted = await llm.submit([PROMPTS[0]], llm.parse(ASKED))
            for _ in range(5):
                await submitted.read()
            name = re.match(r"replica (\w+):", submitted.route.reasons[0])[1]
            os.kill(pids()[name], signal.SIGKILL)
            with pytest.raises(CutawayError, match="computes other bits: its weights is"):
                while await submitted.read():
                    pass

    plan = Plan.from_arguments("1", 1, {"model": str(path)}, {})
    with launch(plan, progress=False) as llm:
        asyncio.run(asyncio.wait_for(run(llm), 90))


def test_behind_rays_own_proxy_it_is_the_same_server(tiny_path, own):
    import ray

    from cutaway.features.cluster import app

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with closing(socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serve.start(http_options={"port": port})
        given = {"model": str(tiny_path), "replicas": "1", "cores": "1", "api_key": "secret"}
        serve.run(app({**given, "max_tokens": "400"}))
        url = f"http://127.0.0.1:{port}/v1/completions"
        body = {**ASKED, "prompt": PROMPTS[0]}
        del body["max_tokens"]  # the server's default
        assert httpx.post(url, json=body).status_code == 401
        with httpx.stream(
            "POST", url, json={**body, "stream": True}, timeout=60,
            headers={"authorization": "Bearer secret"},
        ) as answer:  # fmt: skip
            lines = [line.removeprefix("data: ") for line in answer.iter_lines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        assert "".join(event["choices"][0]["text"] for event in events) == own[0][0]
        assert events[-1]["choices"][0]["cutaway"]["fingerprint"] == own[0][1]
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"modle": "x"}, "modle is not a setting of a server"),
        ({"replicas": "many"}, "--replicas must be a number such as 2"),
        ({"cores": "two"}, "cores must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"max_body": "0"}, "max_body must be"),
    ],
)
def test_bad_settings_are_refused_by_name(given, sentence, tiny_path):
    from cutaway.features.cluster import app

    with pytest.raises(InputError, match=sentence):
        app({"model": str(tiny_path), **given})
