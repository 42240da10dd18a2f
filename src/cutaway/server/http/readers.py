"""Metrics that are read at each scrape: the state of the engine and of replicas."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cutaway.compute.backends import Computer
from cutaway.engine import EngineState


class LoadedReader(Collector):
    """Whether a model is in memory."""

    def __init__(self, loaded: Callable[[], bool]) -> None:
        self._loaded = loaded

    def collect(self) -> Iterator[Metric]:
        """At this moment."""
        yield _gauge("model_loaded", "Whether the model is in memory, 0 or 1.", self._loaded())


class BuildReader(Collector):
    """What is running, which may be known only after the start."""

    def __init__(self, version: str, model: str, computer: Callable[[], Computer]) -> None:
        self._version, self._model, self._computer = version, model, computer

    def collect(self) -> Iterator[Metric]:
        """One sample, whose labels say it."""
        computer, labels = self._computer(), ("version", "model", "backend", "tier")
        help = "What is running; always 1."
        family = GaugeMetricFamily("cutaway_build_info", help, labels=labels)
        family.add_metric([self._version, self._model, computer.name, computer.tier], 1)
        yield family


class EngineReader(Collector):
    """How busy the engine is."""

    def __init__(self, state: Callable[[], EngineState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """At this moment."""
        state = self._state()
        each = "Each of n samples is one."
        yield _gauge("requests_running", f"Sequences that hold KV blocks. {each}", state.running)
        yield _gauge("requests_waiting", f"Sequences in the queue. {each}", state.waiting)
        yield from _blocks(state)
        yield CounterMetricFamily(
            "cutaway_preemptions",
            "Sequences that were preempted: they wait again and are recomputed.",
            value=state.preemptions,
        )


class ReplicasReader(Collector):
    """How busy each replica is."""

    def __init__(self, replicas: Callable[[], Mapping[str, EngineState]]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        """As the replicas reported last."""
        replicas = self._replicas()
        for name, help, read in _OF_REPLICAS if replicas else ():
            family = GaugeMetricFamily(f"cutaway_replica_{name}", help, labels=["replica"])
            for replica, state in replicas.items():
                family.add_metric([replica], read(state))
            yield family


_OF_REPLICAS: tuple[tuple[str, str, Callable[[EngineState], float]], ...] = (
    ("requests_running", "Sequences that hold KV blocks there.", lambda state: state.running),
    ("requests_waiting", "Sequences in its queue.", lambda state: state.waiting),
    ("kv_blocks", "Its KV blocks.", lambda state: state.kv_blocks),
    ("kv_blocks_held", "Of these, by running sequences.", lambda state: state.kv_held),
    ("preemptions", "Sequences that it preempted.", lambda state: state.preemptions),
)


def _blocks(state: EngineState) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "cutaway_kv_blocks",
        "KV blocks: held by running sequences, or free, those of the prefix cache included. "
        "The sum is all there are.",
        labels=["state"],
    )
    family.add_metric(["held"], state.kv_held)
    family.add_metric(["free"], state.kv_blocks - state.kv_held)
    yield family
    yield _gauge(
        "kv_cache_usage_ratio",
        "Share of the KV blocks that are held, 0 to 1.",
        state.kv_held / max(state.kv_blocks, 1),  # 0 until a replica has reported
    )
    if state.window_blocks is not None:
        yield _gauge(
            "kv_window_blocks",
            "KV blocks that take memory in the layers that see a window: those within the "
            "windows of running sequences, and those that the prefix cache keeps.",
            state.window_blocks,
        )


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cutaway_{name}", help, value=value)
