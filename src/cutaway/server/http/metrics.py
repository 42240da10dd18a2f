"""Prometheus metrics: how busy the engine is, and how every sequence ended.

A process may have several ``Metrics``, each with its own registry.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cutaway.compute.backends import Computer
from cutaway.engine import EngineState, FinishReason
from cutaway.engine.memory.store import StoreCounts

Phase = Literal["queue", "prefill", "decode"]
"""The phase that a sequence reached: it waited, its prompt was read, or it was written."""

_REASONS = tuple(map(str, FinishReason))
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_OF_SERVER = ("process_", "cutaway_http_")  # prefixes of metrics of the server, not of a model

# A CPU takes 3 to 100 ms for a token, and a second or more to read a long prompt.
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_HTTP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, *_WHOLE[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """One sequence that has ended; each of n samples is one.

    prompt_tokens      all tokens of the prompt
    cached_tokens      of these, how many the prefix cache had; None if the sequence never began
    completion_tokens  new tokens, including the one that ended the sequence
    finish_reason      a FinishReason
    queue_s            seconds from arrival until it left the queue; None if it never did
    ttft_s             seconds from arrival until the first token; None without a token
    decode_s           seconds from the first token until the last; None without a token
    duration_s         seconds from arrival until the end
    proposed           draft tokens that were proposed
    accepted           of these, how many were accepted
    draft_cost         what they cost, in steps without drafts
    draft_lengths      how many steps had 0, 1, … draft tokens; () if none were asked for
    draft_rested       during how many of these the draft model or head rested
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    finish_reason: str
    queue_s: float | None
    ttft_s: float | None
    decode_s: float | None
    duration_s: float
    proposed: int = 0
    accepted: int = 0
    draft_cost: float = 0.0
    draft_lengths: Sequence[int] = ()
    draft_rested: int = 0

    @property
    def phase(self) -> Phase:
        """The phase in which the sequence ended."""
        if self.completion_tokens:
            return "decode"
        return "queue" if self.cached_tokens is None else "prefill"

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first token; None if there was no second one."""
        if self.decode_s is None or self.completion_tokens < 2:
            return None
        return self.decode_s / (self.completion_tokens - 1)


class Metrics:
    """The metrics of one model and of the server, in a registry, for use by one thread.

    state     returns the engine's state; called at each scrape
    computer  returns the backend and its tier; called at each scrape
    replicas  returns the state of each replica by name; called at each scrape
    version   cutaway's version
    model     the name under which the model is served
    paths     the path templates used as label values; any other path is "other"
    loaded    returns whether the model is in memory; None if it always is
    """

    def __init__(
        self,
        state: Callable[[], EngineState],
        computer: Callable[[], Computer],
        *,
        replicas: Callable[[], Mapping[str, EngineState]] = dict,
        version: str,
        model: str,
        paths: Collection[str],
        loaded: Callable[[], bool] | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._paths = frozenset(paths)
        self._add_counters()
        self._add_draft_counters()
        self._add_histograms()
        self._read(lambda: engine_metrics(state()))
        self._read(lambda: replica_metrics(replicas()))
        ProcessCollector(registry=self.registry)
        self._read(lambda: build_metrics(version, model, computer()))
        if loaded:
            self._read(lambda: loading_metrics(loaded()))

    def count_sequence(self, text: RequestStats) -> None:
        """Count a sequence that has ended. Must be called once for each sequence."""
        self._count_tokens(text)
        self._texts.labels(_label_value(text.finish_reason, _REASONS)).inc()
        if text.finish_reason == FinishReason.ABORTED:
            self._cancelled.labels(text.phase).inc()
        for histogram, seconds in (
            (self._queue, text.queue_s),
            (self._ttft, text.ttft_s),
            (self._tpot, text.tpot_s),
            (self._duration, text.duration_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def count_resumed(self, times: int, tokens: int) -> None:
        """Count texts that another replica continued, and the tokens that were computed again."""
        self._resumed.inc(times)
        self._replayed.inc(tokens)

    def count_http(
        self, path_template: str | None, method: str, status: int, seconds: float
    ) -> None:
        """Count a request that was answered, and the seconds until its response's last byte."""
        path, method = _label_value(path_template, self._paths), _label_value(method, _METHODS)
        code = str(status) if 100 <= status <= 599 else "other"
        self._http_requests.labels(path, method, code).inc()
        self._http_seconds.labels(path, method).observe(seconds)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics in the format that an Accept header asks for, and the content type."""
        return _page(self.registry, accept)

    # -- the counters and histograms ---------------------------------------------------------

    def _count_tokens(self, text: RequestStats) -> None:
        self._tokens.labels("completion").inc(text.completion_tokens)
        if text.cached_tokens is not None:
            self._tokens.labels("prompt").inc(text.prompt_tokens - text.cached_tokens)
            self._tokens.labels("cached").inc(text.cached_tokens)
            self._queries.inc(text.prompt_tokens)
            self._hits.inc(text.cached_tokens)
        self._proposed.inc(text.proposed)
        self._accepted.inc(text.accepted)
        self._draft_cost.inc(text.draft_cost)
        for length, steps in enumerate(text.draft_lengths):
            self._draft_lengths.labels(str(length)).inc(steps)
        self._draft_rested.inc(text.draft_rested)

    def _read(self, read: Callable[[], Iterable[Metric]]) -> None:
        self.registry.register(AtEachScrape(read))

    def _counter(self, name: str, help: str, *labels: str, values: Iterable[str] = ()) -> Counter:
        """Add a counter.

        values: the values of the counter's one label. Their counts are 0 from the start, so that a
        rate sees the first rise
        """
        counter = Counter(f"cutaway_{name}", help, labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _histogram(
        self, name: str, help: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"cutaway_{name}_seconds", help, labels, registry=self.registry, buckets=buckets
        )

    def _add_counters(self) -> None:
        self._tokens = self._counter(
            "tokens",
            "Tokens of sequences that have ended: prompt tokens that were computed, prompt "
            "tokens found in the prefix cache, and completion tokens. No token is of two kinds; "
            "a prompt counts whole where its sequence was aborted during prefill.",
            "kind",
            values=("prompt", "cached", "completion"),
        )
        self._texts = self._counter(
            "sequences",
            "Sequences that have ended, by finish reason. Each of n samples is one.",
            "finish_reason",
            values=_REASONS,
        )
        self._cancelled = self._counter(
            "requests_cancelled",
            "Sequences that were aborted, by phase. Each of n samples is one.",
            "phase",
            values=get_args(Phase),
        )
        self._queries = self._counter(
            "prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache."
        )
        self._hits = self._counter(
            "prefix_cache_hit_tokens",
            "Prompt tokens found in the prefix cache, or shared with another sample.",
        )
        self._resumed = self._counter(
            "resumed", "Times that the texts of a request went on at another replica."
        )
        self._replayed = self._counter("replayed_tokens", "Tokens that were written again for it.")
        self._http_requests = self._counter(
            "http_requests", "HTTP requests that were answered.", "path", "method", "status"
        )

    def _add_draft_counters(self) -> None:
        self._proposed = self._counter(
            "speculation_proposed_tokens", "Draft tokens that were proposed."
        )
        self._accepted = self._counter(
            "speculation_accepted_tokens", "Draft tokens that were accepted."
        )
        self._draft_cost = self._counter(
            "speculation_cost_steps", "What draft tokens cost, in steps without drafts."
        )
        self._draft_lengths = self._counter(
            "speculation_steps", "Steps of texts with so many draft tokens.", "drafts"
        )
        self._draft_rested = self._counter(
            "speculation_rested_steps", "Steps during which a draft model or head rested."
        )

    def _add_histograms(self) -> None:
        self._queue = self._histogram(
            "queue", "From arrival until the sequence left the queue.", _WAITS
        )
        self._ttft = self._histogram(
            "time_to_first_token", "From arrival until the first token.", _WAITS
        )
        self._tpot = self._histogram(
            "time_per_output_token",
            "Mean time for each token after the first, per sequence.",
            _TOKEN,
        )
        self._duration = self._histogram(
            "sequence_duration", "From arrival until the sequence's end.", _WHOLE
        )
        self._http_seconds = self._histogram(
            "http_request",
            "From a request until its response's last byte.",
            _HTTP,
            "path",
            "method",
        )


def merged_page(by_model: Mapping[str, Metrics], accept: str = "") -> tuple[bytes, str]:
    """Return the page of several models, in which each sample has its model's name as a label.

    The server's own metrics are those of the first model's ``Metrics``.
    """
    registry = CollectorRegistry()
    registry.register(AtEachScrape(lambda: _merge_families(by_model)))
    return _page(registry, accept)


def _page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the header's version is not a number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def _merge_families(by_model: Mapping[str, Metrics]) -> Iterable[Metric]:
    """Merge the metrics of several models, since a page may have each family only once."""
    families: dict[str, Metric] = {}
    for i, (model, metrics) in enumerate(by_model.items()):
        for family in metrics.registry.collect():
            of_server = family.name.startswith(_OF_SERVER)
            if of_server and i > 0:
                continue
            empty = Metric(family.name, family.documentation, family.type)
            label = {} if of_server else {"model": model}
            families.setdefault(family.name, empty).samples += [
                sample._replace(labels={**sample.labels, **label}) for sample in family.samples
            ]
    return families.values()


def _label_value(value: str | None, values: Collection[str]) -> str:
    """Return a label's value, or "other": clients must not be able to add values."""
    return value if value is not None and value in values else "other"


# -- metrics that are read at each scrape: the state of the engine and of replicas -------------


class AtEachScrape(Collector):
    """Metrics that a function returns anew at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the metrics at this moment."""
        return self._read()


def loading_metrics(is_loaded: bool) -> Iterator[Metric]:
    """Yield whether a model is in memory."""
    yield _gauge("model_loaded", "Whether the model is in memory, 0 or 1.", is_loaded)


def build_metrics(version: str, model: str, computer: Computer) -> Iterator[Metric]:
    """Yield one sample, whose labels are the version, the model, the backend and its tier."""
    family = GaugeMetricFamily(
        "cutaway_build_info", "What is running; always 1.",
        labels=("version", "model", "backend", "tier"),
    )  # fmt: skip
    family.add_metric([version, model, computer.name, computer.tier], 1)
    yield family


def engine_metrics(state: EngineState) -> Iterator[Metric]:
    """Yield the gauges and counters of the engine's state."""
    note = "Each of n samples is one."
    yield _gauge("requests_running", f"Sequences that hold KV blocks. {note}", state.running)
    yield _gauge("requests_waiting", f"Sequences in the queue. {note}", state.waiting)
    yield from _block_metrics(state)
    if state.stored is not None:
        yield from store_metrics(state.stored)
    yield CounterMetricFamily(
        "cutaway_preemptions",
        "Sequences that were preempted: they wait again and are recomputed.",
        value=state.preemptions,
    )


def store_metrics(counts: StoreCounts) -> Iterator[Metric]:
    """Yield what the prompt cache on the disk has done, and what it holds."""
    for name, help, total in (
        ("hit_tokens", "Prompt tokens whose keys and values were read there.", counts.hit_tokens),
        ("read_bytes", "Bytes that were read for them.", counts.read_bytes),
        ("written_bytes", "Bytes that were written there.", counts.written_bytes),
        ("missed_bytes", "Bytes that came faster than they were written.", counts.missed_bytes),
        ("damaged", "Parts of blocks that were found damaged, and dropped.", counts.damaged),
        ("unreadable", "Parts of blocks that the disk did not give.", counts.unreadable),
    ):
        yield CounterMetricFamily(f"cutaway_disk_cache_{name}", help, value=total)
    total_help = "All that the folder holds, at the last count and with what was written since."
    age_help = "Seconds since the use of what was not used for the longest time."
    yield _gauge("disk_cache_bytes", total_help, counts.bytes)
    yield _gauge("disk_cache_oldest_seconds", age_help, counts.oldest_s)


def replica_metrics(replicas: Mapping[str, EngineState]) -> Iterator[Metric]:
    """Yield the state of each replica, as it was last reported."""
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


def _block_metrics(state: EngineState) -> Iterator[Metric]:
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
