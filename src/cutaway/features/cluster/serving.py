"""Replicas as a deployment of Ray Serve, and a Front's calls to them."""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable
from socket import gethostname
from time import monotonic
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cutaway.api.async_llm import AsyncLLM
from cutaway.api.llm import LLM
from cutaway.engine import Engine
from cutaway.errors import CutawayError, ReplicaLostError
from cutaway.features.cluster.cores import claim
from cutaway.features.cluster.job import Job
from cutaway.features.cluster.plan import Plan
from cutaway.features.cluster.prefix_router import front_of, name_of
from cutaway.features.cluster.prompts import read_prompt
from cutaway.features.cluster.replica import Replica

T = TypeVar("T")

ENGINE = "Engine"
HUNG_S = 120.0
"""Seconds without an answer of its engine, after which a replica is ended and replaced."""
_PATIENCE_S = 30.0  # waits for the replica that had the cores before to end
_LEAVE_S = 10.0
_LATELY_S = 3.0
"""Seconds for which a prompt is in the reports, several of them, since Ray may drop some."""


class ReplicaActor:
    """One replica: a process with its own cores and the whole model."""

    async def __init__(self, plan: Plan) -> None:  # type: ignore[misc]  # Ray awaits it
        self._claim = claim(plan.cores, patience_s=_PATIENCE_S)
        self._claim.pin()  # before the model starts as many threads
        speculate: Any = {"speculate": plan.draft} if plan.draft else {}
        llm = AsyncLLM(LLM(**plan.model, progress=False), **speculate)
        await asyncio.to_thread(lambda: llm.model.computed_by)  # reads the whole file, once
        self._replica = Replica(llm, name_of(serve.get_replica_context().replica_id))
        self._received: Counter[str] = Counter()
        self._came: deque[tuple[float, tuple[int, ...]]] = deque()

    async def write(self, job: Job) -> None:
        """See ``Replica``."""
        self._received[front_of(job)] += 1
        attention = self._replica.llm.model.config.attention
        for request, n in job.requests:
            self._came.append((monotonic(), read_prompt(request, n, attention).keys))
        await self._replica.write(job)

    async def run_blocking(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """See ``Replica``."""
        return await self._replica.run_blocking(function, *args, **kwargs)

    async def check_health(self) -> None:
        """Called by Ray, which ends a replica that raises here."""
        if self._replica.waited_s > HUNG_S:
            raise CutawayError(f"the engine has not answered for {self._replica.waited_s:.0f} s")

    async def record_routing_stats(self) -> dict[str, Any]:
        """The replica's report to routers: see ``routing.Load``."""
        received = dict(self._received)  # before the load is counted
        rows, texts = await self._replica.llm.engine.call(_load, self._replica.llm.engine.engine)
        while self._came and self._came[0][0] < monotonic() - _LATELY_S:
            self._came.popleft()
        prompts = [keys for _, keys in self._came]
        process = {"host": gethostname(), "pid": os.getpid(), "cores": self._claim.cores}
        return {
            "rows": rows, "texts": texts, "received": received, "prompts": prompts,
            "process": process,
        }  # fmt: skip

    async def __del__(self) -> None:
        """Called by Ray when the replica is to end: hand texts over, then close."""
        await self._replica.leave(_LEAVE_S)
        await self._replica.close()
        self._claim.release()


def _load(engine: Engine) -> tuple[int, int]:
    """(rows still to be computed, number of texts)."""
    texts = [*engine.running, *engine.waiting]
    return sum(len(text) - text.num_computed_tokens for text in texts), len(texts)


def engines(plan: Plan, attention: str | int) -> serve.Application:
    """The deployment of a plan. attention: the model's, see ``Limits.attention``."""
    router = RequestRouterConfig(
        request_router_class="cutaway.features.cluster.prefix_router.PrefixRouter",
        request_router_kwargs={"attention": attention},
        request_routing_stats_period_s=1.0,
    )
    deployment = serve.deployment(
        ReplicaActor, name=ENGINE, ray_actor_options={"num_cpus": plan.cores},
        max_ongoing_requests=plan.most_calls, request_router_config=router,
        health_check_period_s=2.0, health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=20.0,
        max_constructor_retry_count=3, **_how_many(plan),
    )  # fmt: skip
    return deployment.bind(plan)


def _how_many(plan: Plan) -> dict[str, Any]:
    if plan.fewest == plan.most:
        return {"num_replicas": plan.fewest}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=plan.fewest, initial_replicas=plan.fewest, max_replicas=plan.most,
            target_ongoing_requests=8, upscale_delay_s=10, downscale_delay_s=120,
            look_back_period_s=10, metrics_interval_s=2,
        )
    }  # fmt: skip


class RayReplicas:
    """``Replicas`` behind a handle of Ray Serve."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def write(self, job: Job) -> None:
        """See ``Replicas``."""
        await _result(self._handle.write.remote(job))

    async def run_blocking(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """See ``Replicas``."""
        answer: T = await _result(self._handle.run_blocking.remote(function, *args, **kwargs))
        return answer


async def _result(response: Any) -> Any:
    """A replica's answer or exception; ReplicaLostError where Ray reports it lost."""
    try:
        return await response
    except RayTaskError as error:
        if isinstance(error.cause, RayError | asyncio.CancelledError):
            raise ReplicaLostError(f"a replica is lost: {error.cause!r}") from error
        raise error.cause from None
    except (RayError, RayServeException) as error:
        raise ReplicaLostError(f"a replica is lost: {type(error).__name__}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ReplicaLostError("a replica ends") from None
