"""``cutaway serve``: which models it has, their adapters, and signals while it starts."""

import asyncio
import json
import logging
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from cutaway import LLM
from cutaway.cli import serve
from cutaway.cli.main import main
from cutaway.cli.options import arguments, namespace
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.features.cluster.plan import Plan, read_replicas
from cutaway.requests.options import OPTIONS
from cutaway.server.http.guard import OPEN_PATHS
from cutaway.server.http.process import CUT_AFTER_S
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from cutaway.server.routes import status
from cutaway.server.service import names_of
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama
from support.server_processes import serve_arguments, server


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf")


def test_what_each_is_called(path):
    def named(*models):
        return serve.named_models(serve_arguments(*(word for m in models for word in ("-m", m))))

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
        with serve.open_models(args, {}, print):
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
    with pytest.raises(InputError, match=told), serve.open_models(args, {}, print):
        pass


def test_two_files_of_one_name_need_other_names(path):
    args = serve_arguments("-m", str(path), "-m", str(path), "-q")
    told = pytest.raises(InputError, match="two models have the name tiny")
    with told, serve.open_models(args, {}, print):
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
    with serve.open_models(serve_arguments(*words), {}, print) as llms:
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


# -- signals while it starts, and what its log says of its end -------------------------------------


LOADING = """
import sys, time
from cutaway.cli import serve
def open_models(*_):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(60)
serve.open_models = open_models
from cutaway.cli.main import main
sys.exit(main())
"""
SERVE = ("serve", "--port", "0", "--log", "json", "-q")


@pytest.mark.parametrize(
    ("name", "code"),
    [("SIGTERM", 0), pytest.param("SIGHUP", 0, marks=pytest.mark.slow), ("SIGINT", 130)],
)
def test_a_signal_while_it_loads(name, code):
    command = [sys.executable, "-c", LOADING, *SERVE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "loading\n"
        process.send_signal(getattr(signal, name))
        said = process.stderr.read()
    assert (process.returncode, "Traceback" in said) == (code, False)


@pytest.mark.parametrize("name", [pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGHUP"])
def test_its_end_is_in_the_log(tiny, name):
    command = [sys.executable, "-m", "cutaway", *SERVE, "-m", tiny]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        events = []
        for line in process.stderr:
            events.append(json.loads(line)["event"])
            if events[-1] == "ready":
                process.send_signal(getattr(signal, name))
    assert (events, process.returncode) == (["ready", "stopping", "stopped"], 0)


def test_a_host_gets_its_loggers_back(tiny, monkeypatch):
    from cutaway.server.http import process

    names = ("cutaway.server", "uvicorn.error", "uvicorn.access", "asyncio")
    during = []

    def state():
        every = map(logging.getLogger, names)
        return [([*each.handlers], each.level, each.propagate) for each in every]

    before = state()
    monkeypatch.setattr(process, "run", lambda *_, **__: during.append(state()) or 0)
    assert main([*SERVE, "-m", tiny]) == 0
    assert state() == before != during[0]


# -- deploy ----------------------------------------------------------------------------------------

# The Dockerfile and the samples in deploy/: their commands and paths are ones that we have.


ROOT = Path(__file__).parents[2]
DOCKER_STOP_S = 10
"""How long ``docker stop`` waits, unless it is told otherwise."""


def command(words):
    """The arguments of ``cutaway serve``, as itself reads them."""
    name, *argv = words
    assert name == "serve"
    args = serve_arguments(*argv)
    namespace.request_options(args)
    serve._settings(args)
    return args


def is_asked_for_without_a_key(path):
    return path in OPEN_PATHS and path in {route.path for route in status.router.routes}


@pytest.fixture(scope="module")
def dockerfile():
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line[:1].isupper()]
    assert all(len(line) == 2 for line in lines)
    return lines


def of(dockerfile, instruction):
    *_, last = [rest for name, rest in dockerfile if name == instruction]
    return last


def test_the_image_serves(dockerfile):
    assert json.loads(of(dockerfile, "ENTRYPOINT")) == ["cutaway"]
    args = command(json.loads(of(dockerfile, "CMD")))
    assert args.host == "0.0.0.0" and str(args.port) == of(dockerfile, "EXPOSE")
    assert args.grace + CUT_AFTER_S < DOCKER_STOP_S
    url = urlsplit(re.search(r"urlopen\('([^']+)'", of(dockerfile, "HEALTHCHECK"))[1])
    assert is_asked_for_without_a_key(url.path) and url.port == args.port
    assert int(of(dockerfile, "USER")) > 0


def test_what_is_built_is_sent_to_the_build(dockerfile):
    *rules, pycache, built = (ROOT / ".dockerignore").read_text().split()
    assert rules.pop(0) == "*" and (pycache, built) == ("**/__pycache__", "**/*.so")
    sent = {rule.removeprefix("!") for rule in rules}
    assert all(rule.startswith("!") for rule in rules)
    assert all((ROOT / name).exists() for name in sent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences = {name.partition("/")[0] for name in project["license-files"]}
    built = {"pyproject.toml", "CMakeLists.txt", "native", "src", "tools/build-requirements.txt"}
    assert sent == {*built, project["readme"], *licences}
    extra = re.search(r"ARG EXTRAS=(\w+)", (ROOT / "Dockerfile").read_text())[1]
    assert extra in project["optional-dependencies"]


def documents(name):
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))


def test_the_deployment():
    service, deployment = documents("deployment.yaml")
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    args = command(container["args"])
    labels = pod["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    [port] = container["ports"]
    assert port["containerPort"] == args.port and args.host == "0.0.0.0"
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[kind]["httpGet"]
        assert is_asked_for_without_a_key(asked["path"]) and asked["port"] == port["name"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    [sleep, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    ends = int(seconds) + args.grace + CUT_AFTER_S
    assert sleep == "sleep" and ends < pod["spec"]["terminationGracePeriodSeconds"]


def test_a_pod_gets_processors_of_its_own():
    [_, deployment] = documents("deployment.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    wanted = container["resources"]
    assert wanted["requests"] == wanted["limits"]  # what the static CPU manager asks for, and
    assert wanted["limits"]["cpu"].isdigit()  # whole processors
    environment = {one["name"] for one in container["env"]}
    assert environment == {serve._KEY}


def test_names_are_the_image_s_own(dockerfile):
    [_, deployment] = documents("deployment.yaml")
    spec = deployment["spec"]["template"]["spec"]
    user = int(of(dockerfile, "USER"))
    assert spec["securityContext"]["runAsUser"] == user
    [home] = re.findall(r"CUTAWAY_HOME=(\S+)", of(dockerfile, "ENV"))
    mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert mounts["models"] == home and mounts.keys() == {v["name"] for v in spec["volumes"]}
    added = next(rest for name, rest in dockerfile if name == "RUN" and "useradd" in rest)
    assert f"--uid {user}" in added and f"--owner={user}" in shlex.split(added)


def test_a_ray_service_is_as_closed_as_a_deployment():
    [_, deployment] = documents("deployment.yaml")
    [pod] = deployment["spec"]["template"]["spec"]["containers"]
    service, policy = documents("rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert "api_key" not in service["spec"]["serveConfigV2"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        assert template["metadata"]["labels"] == selected
        [container] = template["spec"]["containers"]
        assert container["securityContext"] == pod["securityContext"]
        assert container["env"] == pod["env"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {mount["name"]: mount["mountPath"] for mount in pod["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in template["spec"]["volumes"]}
    for rule in policy["spec"]["ingress"]:
        assert "from" in rule or rule["ports"] == [{"port": 8000}]
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_the_ray_service(dockerfile):
    [service, _] = documents("rayservice.yaml")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    [application] = config["applications"]
    module, name = application["import_path"].split(":")
    args = application["args"]
    cluster = service["spec"]["rayClusterConfig"]
    [engines] = cluster["workerGroupSpecs"]
    fewest, most = read_replicas(args["replicas"])
    assert (fewest, most) == (engines["minReplicas"], engines["maxReplicas"])
    assert engines["replicas"] == fewest
    [worker] = engines["template"]["spec"]["containers"]
    assert worker["resources"]["requests"] == worker["resources"]["limits"]
    assert worker["resources"]["limits"]["cpu"] == str(args["cores"])  # one replica a pod
    for group in (engines, cluster["headGroupSpec"]):
        spec = group["template"]["spec"]
        assert spec["securityContext"]["runAsUser"] == int(of(dockerfile, "USER"))
        assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/models"
    needs = "needs ray: pip install '.[test-ray]'"
    schema = pytest.importorskip("ray.serve.schema", reason=needs)
    schema.ServeDeploySchema(**config)
    assert callable(getattr(import_module(module), name))
    served = import_module("cutaway.features.cluster.served")
    assert args.keys() <= {"replicas", "cores"} | served._MODEL | served._SETTINGS | set(OPTIONS)
    assert cluster["rayVersion"] == import_module("ray").__version__
