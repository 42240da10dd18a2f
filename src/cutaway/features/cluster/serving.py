"""Replicas as a deployment of Ray Serve, a Front's calls to them, and the router that Ray asks.

This module only adapts ``replica.Replica`` and ``routing.Router`` to Ray.
"""

import asyncio
import os
from asyncio import Future
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR, WARNING
from socket import gethostname
from time import monotonic
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cutaway.api.async_llm import AsyncLLM
from cutaway.api.llm import LLM
from cutaway.engine import Engine
from cutaway.errors import CutawayError, ReplicaLostError
from cutaway.features.cluster.plan import Plan, claim
from cutaway.features.cluster.prompt_blocks import read_prompt
from cutaway.features.cluster.replica import Replica
from cutaway.features.cluster.routing import Choice, Load, Router
from cutaway.features.cluster.wire import Job
from cutaway.server.http.log import event

T = TypeVar("T")

ENGINE = "Engine"
HUNG_S = 120.0
"""Ray ends and replaces a replica whose engine does not answer for this many seconds."""
_PATIENCE_S = 30.0  # for the previous replica on these cores to end
_LEAVE_S = 10.0
_LATELY_S = 3.0
"""Seconds for which reports include a prompt; this makes several reports, as Ray may drop some."""


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
        if not self._replica.llm.alive:
            raise CutawayError("the engine has ended, or its GPU was lost")

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
        """Called by Ray to end the replica: hand texts over, then close."""
        await self._replica.leave(_LEAVE_S)
        await self._replica.close()
        self._claim.release()


def _load(engine: Engine) -> tuple[int, int]:
    """Return (number of rows still to be computed, number of texts)."""
    texts = [*engine.running, *engine.waiting]
    return sum(len(text) - text.num_computed_tokens for text in texts), len(texts)


def engines(plan: Plan, attention: str | int) -> serve.Application:
    """The deployment of a plan. attention: the model's, see ``Limits.attention``."""
    router = RequestRouterConfig(
        request_router_class="cutaway.features.cluster.serving.PrefixRouter",
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
    """Return a replica's answer or raise its exception; ReplicaLostError if the replica is lost."""
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


# -- the router ------------------------------------------------------------------------------------


@dataclass
class _RoutedJob:
    """A job at a replica. result: that of Ray's call, once the replica has accepted the job."""

    job: Job
    replica: str
    result: Any = None


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Sends a job to the replica where its first token is cheapest.

    The router runs in the caller's process, and writes the replica and the reason into the job
    before Ray sends it. All other calls go to the replica that has the fewest calls. When Ray takes
    a replica off its list, because the replica shuts down or its machine is lost, the router
    cancels the replica's calls, so that their jobs continue elsewhere at once.
    """

    def initialize_state(self, *, attention: str | int = "causal", **_: Any) -> None:
        """attention: the model's attention; see ``Limits.attention``."""
        self._router, self._attention = Router(), attention
        self._names: set[str] = set()  # that have reported
        self._calls: dict[str, _RoutedJob] = {}  # by Ray's id of each
        self._over: Counter[str] = Counter()
        self._front = ""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Groups of replicas, in the order in which Ray tries them."""
        if pending_request is None or (job := _job_of(pending_request)) is None:
            return [candidate_replicas]
        by_name = {name_of(replica.replica_id): replica for replica in candidate_replicas}
        try:
            ranked = self._rank(job, pending_request)
        except Exception as error:  # or the call would wait forever
            event("not_routed", level=ERROR, error=error, job=job.id)
            ranked = []
        names = [choice.replica for choice in ranked if choice.replica in by_name]
        replicas = [by_name.pop(name) for name in names]
        return [*([replica] for replica in replicas), [*by_name.values()]]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """A replica accepted the call; if the chosen replica had no room, it is another replica."""
        if call := self._calls.get(_id(pending_request)):
            call.replica, call.result = name_of(replica_id), result

    def on_request_completed(
        self,
        replica_id: ReplicaID,
        internal_request_id: str,
    ) -> None:
        """The call has ended, or was not accepted."""
        if call := self._calls.pop(internal_request_id, None):
            self._over[name_of(replica_id)] += self._router.note_ended(call.job.id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that exist now, with their reports."""
        super().update_replicas(replicas)
        self._update()
        for replica in replicas:
            self._report(replica)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A replica has ended."""
        super().on_replica_actor_died(replica_id)
        self._update()

    def _update(self) -> None:
        names = {name_of(replica_id) for replica_id in self.curr_replicas}
        self._router.update(names)
        for name in sorted(self._names - names):
            calls = [call for call in self._calls.values() if call.result and call.replica == name]
            event("replica_gone", level=WARNING, replica=name, jobs=len(calls))
            for call in calls:
                call.result.cancel()
        self._names &= names

    def _report(self, replica: RunningReplica) -> None:
        if stats := replica.routing_stats:
            if (name := name_of(replica.replica_id)) not in self._names:
                self._names.add(name)
                event("replica", replica=name, **stats["process"])
            # Jobs that ended before a report do not count: the router has dropped them.
            received = stats["received"].get(self._front, 0) - self._over[name]
            load = Load(stats["rows"], stats["texts"], received, stats["prompts"])
            self._router.report(name, load)

    def _rank(self, job: Job, pending: PendingRequest) -> list[Choice]:
        self._front = front_of(job)
        prompts = [read_prompt(request, n, self._attention) for request, n in job.requests]
        # If the job avoids all replicas, one of them is better than none.
        ranked = self._router.rank(prompts, job.avoid) or self._router.rank(prompts)
        if ranked:
            best = ranked[0]
            self._router.note_sent(job.id, prompts, best)
            self._calls[_id(pending)] = _RoutedJob(job, best.replica)
            job.replica, job.reason = best.replica, str(best)
            pending.future.add_done_callback(lambda future: self._unsent(pending, future))
        return ranked

    def _unsent(self, pending: PendingRequest, future: Future[Any]) -> None:
        """Note that the caller cancelled before Ray sent the call; Ray does not report it."""
        if future.cancelled() and (call := self._calls.pop(_id(pending), None)):
            self._router.note_ended(call.job.id)


def name_of(replica_id: ReplicaID) -> str:
    """A replica's name in choices, logs and answers."""
    name: str = replica_id.unique_id
    return name


def front_of(job: Job) -> str:
    """The name of the job's Front."""
    return f"{job.reply_to.host}:{job.reply_to.port}"


def _job_of(pending: PendingRequest) -> Job | None:
    first = pending.args[0] if pending.args else None
    return first if isinstance(first, Job) else None


def _id(pending: PendingRequest) -> str:
    call_id: str = pending.metadata.internal_request_id
    return call_id
