"""``cutaway serve``: signals while it starts, its log, and how it is deployed."""

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

import pytest
import yaml

from cutaway.cli import serve
from cutaway.cli.main import main
from cutaway.cli.options import namespace
from cutaway.features.cluster.plan import read_replicas
from cutaway.requests.options import OPTIONS
from cutaway.server.http.guard import OPEN_PATHS
from cutaway.server.http.process import CUT_AFTER_S
from cutaway.server.routes import status
from support.server_processes import serve_arguments

LOADING = """
import sys, time
from cutaway.cli import served_models
def open_models(*_):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(60)
served_models.open_models = open_models
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
