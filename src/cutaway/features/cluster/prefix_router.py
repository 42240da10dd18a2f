"""Adapts ``routing.Router`` to Ray Serve: chooses the replica of each call."""

from asyncio import Future
from collections import Counter
from dataclasses import dataclass
from logging import ERROR, WARNING
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cutaway.features.cluster.job import Job
from cutaway.features.cluster.prompts import read_prompt
from cutaway.features.cluster.routing import Choice, Load, Router
from cutaway.server.http.log import event


@dataclass
class _RoutedJob:
    """A job at a replica. result: of Ray's call, once the replica has accepted it."""

    job: Job
    replica: str
    result: Any = None


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Sends a job to the replica where its first token is cheapest.

    Replica and reason are set in the job here, in the caller's process, before Ray sends it. All
    other calls go to the replica that has the fewest. Where Ray takes a replica off its list,
    because it shuts down or its machine is lost, its calls are cancelled, so that their jobs
    continue elsewhere at once.
    """

    def initialize_state(self, *, attention: str | int = "causal", **_: Any) -> None:
        """attention: of the model, see ``Limits.attention``."""
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
        by_name = {name_of(one.replica_id): one for one in candidate_replicas}
        try:
            ranked = self._rank(job, pending_request)
        except Exception as error:  # or the call would wait forever
            event("not_routed", level=ERROR, error=error, job=job.id)
            ranked = []
        found = [by_name.pop(one.replica) for one in ranked if one.replica in by_name]
        return [*([one] for one in found), [*by_name.values()]]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """A replica accepted the call: another one than was chosen, if that had no room."""
        if call := self._calls.get(_id(pending_request)):
            call.replica, call.result = name_of(replica_id), result

    def on_request_completed(
        self,
        replica_id: ReplicaID,
        internal_request_id: str,
    ) -> None:
        """The call has ended, or was not accepted."""
        if call := self._calls.pop(internal_request_id, None):
            self._over[name_of(replica_id)] += self._router.ended(call.job.id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that exist now, with their reports."""
        super().update_replicas(replicas)
        self._update()
        for one in replicas:
            self._report(one)

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
            # Not counting jobs that ended before they were reported: the router has dropped them.
            received = stats["received"].get(self._front, 0) - self._over[name]
            load = Load(stats["rows"], stats["texts"], received, stats["prompts"])
            self._router.report(name, load)

    def _rank(self, job: Job, pending: PendingRequest) -> list[Choice]:
        self._front = front_of(job)
        prompts = [read_prompt(request, n, self._attention) for request, n in job.requests]
        # If all replicas are to be avoided, one of them is better than none.
        ranked = self._router.rank(prompts, job.avoid) or self._router.rank(prompts)
        if ranked:
            best = ranked[0]
            self._router.sent(job.id, prompts, best)
            self._calls[_id(pending)] = _RoutedJob(job, best.replica)
            job.replica, job.why = best.replica, str(best)
            pending.future.add_done_callback(lambda future: self._unsent(pending, future))
        return ranked

    def _unsent(self, pending: PendingRequest, future: Future[Any]) -> None:
        """The caller cancelled before the call was sent, which Ray does not report."""
        if future.cancelled() and (call := self._calls.pop(_id(pending), None)):
            self._router.ended(call.job.id)


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
    found: str = pending.metadata.internal_request_id
    return found
