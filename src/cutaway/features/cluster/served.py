"""``serve run cutaway.features.cluster:app model=smollm2``: our server as Ray's deployment.

The application of ``cutaway serve`` behind Ray's own proxies, on a cluster that Ray starts and
ends, such as KubeRay's RayService.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from cutaway.base.checks import current_names
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.features.cluster.front import ClusterLLM
from cutaway.features.cluster.launch import FRONT_ENVIRONMENT, without_weights
from cutaway.features.cluster.plan import Plan
from cutaway.features.cluster.serving import ENGINE, RayReplicas, engines
from cutaway.requests.options import OPTIONS
from cutaway.server.app import create_app
from cutaway.server.http import log
from cutaway.server.http.settings import ServerSettings, key_in_environment

_MODEL = frozenset(
    {
        "model", "prefix_cache", "max_num_seqs", "max_waiting", "step_ms",
        "cache_dir", "cache_size",
        *(f.name for f in fields(Setup)),
    }
)  # fmt: skip
_SETTINGS = frozenset(field.name for field in fields(ServerSettings))
_MOST_ANSWERS = 1024


def app(args: Mapping[str, Any]) -> serve.Application:
    """The server and its replicas.

    args  replicas, cores, and the keywords of ``LLM``, of requests and of ``ServerSettings`` by
          their names in Python. A text that is JSON is parsed. Without api_key, the key is the
          environment variable CUTAWAY_API_KEY

    Raises InputError for an unknown name or a bad value.
    """
    keywords = current_names({name: _read(value) for name, value in args.items()})
    replicas, cores = keywords.pop("replicas", 1), keywords.pop("cores", None)
    model, settings, options = (
        {name: keywords.pop(name) for name in names & keywords.keys()}
        for names in (_MODEL, _SETTINGS, frozenset(OPTIONS))
    )
    if keywords:
        raise InputError(
            min(keywords),
            " is not a setting of a server: take replicas, cores, a keyword "
            "of LLM or of requests, or a setting of the server",
        )
    if settings.get("api_key") is None:
        settings["api_key"] = key_in_environment()
    if settings["api_key"] is None:  # else a web page could reach us through its own domain
        settings.setdefault("allow_hosts", [])
    server_settings = ServerSettings(
        **{"names": [str(model.get("model", ""))], **settings} if model else settings
    )
    plan = Plan.from_arguments(replicas, cores, model, options)
    attention = without_weights(plan).config.attention

    def build() -> FastAPI:
        log.configure("human")
        handle = serve.get_deployment_handle(ENGINE, serve.get_replica_context().app_name)
        host = ray.util.get_node_ip_address()
        llm = ClusterLLM(without_weights(plan), RayReplicas(handle), host=host, **options)
        return create_app(llm, server_settings)

    front = serve.deployment(
        serve.ingress(build)(), name="Front", max_ongoing_requests=_MOST_ANSWERS,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": FRONT_ENVIRONMENT}},
    )  # fmt: skip
    application: serve.Application = front.bind(engines(plan, attention))
    return application


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
