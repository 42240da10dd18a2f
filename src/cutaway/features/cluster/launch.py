"""Starts or connects to Ray, starts replicas for one server, and ends all that it has started."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from secrets import token_hex
from signal import SIGTERM, getsignal, signal
from socket import create_connection
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

from cutaway.base import system
from cutaway.base.checks import shown
from cutaway.base.resources import usable_cores
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import CutawayError, InputError
from cutaway.features.cluster.plan import Plan

if TYPE_CHECKING:
    from cutaway.features.cluster.front import ClusterLLM

FRONT_ENVIRONMENT = {
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}
"""Ray's settings in a Front's process. A router with its own event loop delays the first token: its
loop wakes threads more often while replicas compute. With auto-connect, a late thread of Ray could
start Ray again after Ray has ended."""
_LISTENS_S = 5.0
_OWN_ERROR = re.compile(r"^(?:cutaway\.errors\.\w+|RuntimeError): (.+)$", re.MULTILINE)


def without_weights(plan: Plan, *, progress: bool = False) -> LoadedModel:
    """Open the plan's model without weights, for a process that only reads prompts and options."""
    setup = {key: value for key, value in plan.model.items() if key in Setup.__dataclass_fields__}
    name = plan.model.get("model")
    return LoadedModel.open(name, Setup(**setup), progress=progress, weights=False)


@contextmanager
def launch(
    plan: Plan, address: str | None = None, *, progress: bool = True, **options: Any
) -> Iterator["ClusterLLM"]:
    """Start the replicas of a plan, and yield their model; the replicas end with the block.

    address  of a Ray cluster of which this machine is a node; None starts Ray on this machine alone
    options  keywords of all requests

    Raises InputError if Ray is not installed or cannot be reached, or if the cluster has too few
    cores; CutawayError with the reason if no replica could be started.
    """
    model = without_weights(plan, progress=progress)
    with _ray(address, plan) as host:
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        from cutaway.features.cluster.front import ClusterLLM
        from cutaway.features.cluster.serving import RayReplicas, engines

        name = f"cutaway-{token_hex(4)}"
        application = engines(plan, model.config.attention)
        try:
            try:
                handle = serve.run(application, name=name, route_prefix=None)
            except (RuntimeError, TimeoutError, RayError, RayServeException) as error:
                report = "\n".join([str(error), *_deployment_messages(serve, name)])
                raise CutawayError(f"no replica could be started: {_reason(report)}") from error
            yield ClusterLLM(model, RayReplicas(handle), host=host, **options)
        finally:
            if address is not None:
                serve.delete(name)


@contextmanager
def _ray(address: str | None, plan: Plan) -> Iterator[str]:
    """Start Ray or connect to Ray; yield the address at which Ray's nodes reach this machine."""
    cores = len(usable_cores())
    if address is None:
        plan.check_room(cores, "this machine")
    else:
        _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name, value in FRONT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.serve
    except ImportError as error:
        raise InputError(f"--replicas needs {error.name}: pip install 'cutaway[ray]'") from error
    _init(ray, address, cores)
    # Ray has log files of its own; the terminal is the server's.
    ray._private.worker._worker_logs_enabled = False
    getLogger("ray").setLevel(CRITICAL)
    getLogger("ray.serve").setLevel(CRITICAL)
    try:
        if address is None:
            ray.serve.start(proxy_location="Disabled")
            yield "127.0.0.1"
        else:
            plan.check_room(int(ray.cluster_resources().get("CPU", 0)), "the cluster")
            yield ray.util.get_node_ip_address()
    finally:
        ray.shutdown()


def _init(ray: Any, address: str | None, cores: int) -> None:
    of_its_own = {"num_cpus": cores, "include_dashboard": False} if address is None else {}
    try:
        with _own_signals():
            ray.init(
                address=address or "local", log_to_driver=False, logging_level="ERROR",
                # Else workers look for modules in the current folder first, and the folder may be
                # somebody else's. For a client's job, Ray does not know the folder.
                job_config=ray.job_config.JobConfig(_client_job=True), **of_its_own,
            )  # fmt: skip
    except ConnectionError as error:
        raise _no_cluster(str(address)) from error
    except (RuntimeError, TimeoutError, OSError) as error:
        raise CutawayError(f"Ray could not be started: {_reason(str(error))}") from error


def _check_address(address: str) -> None:
    """Raise InputError if nothing listens there; Ray itself would keep trying for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16) or "/" in host:
        raise InputError(f"--address must be auto or HOST:PORT, not {shown(address)}")
    try:
        create_connection((host.strip("[]"), int(port)), _LISTENS_S).close()
    except OSError as error:
        raise _no_cluster(address) from error


def _no_cluster(address: str) -> InputError:
    return InputError(
        f"--address {address}: no Ray cluster answers there of which this machine is a node; "
        "'ray start --address' makes it one"
    )


def _deployment_messages(serve: Any, name: str) -> list[str]:
    """Return Ray's messages on an application's deployments: Ray's errors leave them out."""
    try:
        status = serve.status().applications.get(name)
    except Exception:  # Ray itself may have ended; the caller's error says so
        return []
    return [deployment.message for deployment in status.deployments.values()] if status else []


def _reason(report: str) -> str:
    """Our own error message within Ray's report, which has tracebacks of several processes."""
    errors = _OWN_ERROR.findall(report)
    return errors[-1] if errors else report.strip().splitlines()[-1]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handlers of ending signals after the block: Ray sets its own handlers in it."""
    here = current_thread() is main_thread()
    before = {number: getsignal(number) for number in system.ENDING} if here else {}
    try:
        yield
    except SystemExit:  # of Ray's handler, with a code of its own
        if callable(ends := before.get(SIGTERM)):
            ends(SIGTERM, None)
        raise
    finally:
        for number, handler in before.items():
            signal(number, handler)
