"""Metrics that are read at each scrape: the state of the engine and of replicas."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cutaway.compute.backends import Computer
from cutaway.engine import EngineState


class Reader(Collector):
    """Metrics that a function makes anew at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """At this moment."""
        return self._read()


def loaded(is_loaded: bool) -> Iterator[Metric]:
    """Whether a model is in memory."""
    yield _gauge("model_loaded", "Whether the model is in memory, 0 or 1.", is_loaded)


def build(version: str, model: str, computer: Computer) -> Iterator[Metric]:
    """What is running, in the labels of one sample."""
    family = GaugeMetricFamily(
        "cutaway_build_info", "What is running; always 1.",
        labels=("version", "model", "backend", "tier"),
    )  # fmt: skip
    family.add_metric([version, model, computer.name, computer.tier], 1)
    yield family


def engine(state: EngineState) -> Iterator[Metric]:
    """How busy the engine is."""
    each = "Each of n samples is one."
    yield _gauge("requests_running", f"Sequences that hold KV blocks. {each}", state.running)
    yield _gauge("requests_waiting", f"Sequences in the queue. {each}", state.waiting)
    yield from _blocks(state)
    yield CounterMetricFamily(
        "cutaway_preemptions",
        "Sequences that were preempted: they wait again and are recomputed.",
        value=state.preemptions,
    )


def of_replicas(replicas: Mapping[str, EngineState]) -> Iterator[Metric]:
    """How busy each replica was when it reported last."""
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
    if state.states is not None:
        yield _gauge(
            "recurrent_states",
            "Recurrent states in memory: those of running sequences, and those that the prefix "
            "cache keeps.",
            state.states,
        )


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cutaway_{name}", help, value=value)
