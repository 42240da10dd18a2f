"""The whole benchmark: it loads, warms up, measures in turns, and makes a document of all figures.

Figures are in bytes, seconds, and rates per second; shares and fractions are 0 … 1. The benchmark
times runs of the real engine, and the backend's run inside each. Prompts are random tokens of a
fixed seed, and end tokens end no text: the times do not depend on what the model writes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.resources import default_threads
from cutaway.compute import backends
from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.compute.loading.open import size_of
from cutaway.compute.loading.parts import open_as
from cutaway.compute.model.ops.linear import Linear
from cutaway.engine import Engine, Policy, Request, Step, StopParams
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import InputError
from cutaway.features.measure.machine import Costs, Noise, Probe, costs_of, peak_memory
from cutaway.files import hub
from cutaway.files.weights import ModelFile
from cutaway.sampling import History, RowDraw, SamplingParams

STEPS = 32
"""Decode steps of one run; the first WARM of them do not count."""
WARM = 4
MOST_STREAMS = Policy().max_num_seqs
DEFAULTS = SamplingParams(seed=1)
"""The defaults of the command line."""


@dataclass
class Steps:
    """Seconds of some steps; each list has one value per step.

    step      the whole step
    plan      the backend's run within the step
    sampling  the step's draws, repeated alone
    """

    step: list[float] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)


class TimedBackend:
    """A backend that keeps the seconds, the rows and the logits of its latest run."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.seconds = 0.0
        self.rows = 0
        self.logits: Logits | None = None

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped backend's attribute."""
        return getattr(self._backend, name)

    def run(self, batch: Batch) -> Logits:
        """Run a batch on the backend, and keep its time."""
        started = perf_counter()
        self.logits = self._backend.run(batch)
        self.seconds = perf_counter() - started
        self.rows = len(batch.tokens)
        return self.logits


@contextmanager
def stop_watch(engine: Engine) -> Iterator[TimedBackend]:
    """Wrap an engine's backend in a ``TimedBackend`` within the block."""
    backend = engine.backend
    watch = TimedBackend(backend)
    engine.backends[""] = cast("Backend", watch)
    try:
        yield watch
    finally:
        engine.backends[""] = backend


def decode(
    llm: LLM, rng: np.random.Generator, context: int, batch: int,
    params: SamplingParams = DEFAULTS, *, resample: bool = True,
) -> Steps:  # fmt: skip
    """Time STEPS - WARM decode steps of ``batch`` sequences with prompts of ``context`` tokens.

    Steps that still read a prompt do not count.
    resample: draw each token once more, to time sampling alone
    """
    steps, warm = Steps(), 0
    with stop_watch(llm.engine) as watch, _sequences(llm, rng, context, batch, params) as sequences:
        while warm + len(steps.step) < STEPS:
            started = perf_counter()
            drawn_count = _steps(llm.engine)
            seconds = perf_counter() - started
            if watch.rows != batch or drawn_count != batch:
                continue
            if warm < WARM:
                warm += 1
                continue
            steps.step.append(seconds)
            steps.plan.append(watch.seconds)
            if resample:
                steps.sampling.append(_sampling_seconds(llm.engine, sequences, watch.logits))
    return steps


def prefill(
    llm: LLM, rng: np.random.Generator, tokens: int, params: SamplingParams = DEFAULTS
) -> Steps:
    """Time one prompt of ``tokens`` tokens, from the request to its first new token."""
    started, plan = perf_counter(), 0.0
    with stop_watch(llm.engine) as watch, _sequences(llm, rng, tokens, 1, params):
        drawn_count = 0
        while not drawn_count:
            drawn_count = _steps(llm.engine)
            plan += watch.seconds
        return Steps([perf_counter() - started], [plan], [])


def blocks_needed(context: int, batch: int, block: int) -> int:
    """Count the KV blocks of a decode run: each sequence gets enough for the longest text."""
    return batch * -(-longest(context, batch) // block)


def longest(context: int, batch: int) -> int:
    """Count the tokens of the longest text of a decode run."""
    # The first sequence already writes while the last prompt is read: this counts its tokens.
    rows = Policy().max_prefill_rows_while_decoding - min(batch, MOST_STREAMS)
    return context + STEPS + -(-context * batch // rows)


def _steps(engine: Engine) -> int:
    """Run a step and count the tokens that it drew."""
    return sum(isinstance(event, Step) for event in engine.step())


@contextmanager
def _sequences(
    llm: LLM, rng: np.random.Generator, context: int, batch: int, params: SamplingParams
) -> Iterator[list[EngineSequence]]:
    stops = StopParams(max_tokens=longest(context, batch) - context, ignore_eos=True)
    vocab = llm.engine.limits.vocab_size
    sequences = []
    try:
        for _ in range(batch):
            prompt = rng.integers(vocab // 64, vocab, context).tolist()
            request = Request(prompt_token_ids=prompt, sampling=params, stopping=stops)
            sequences += llm.engine.add(request)
        yield sequences
    finally:
        for sequence in sequences:
            llm.engine.abort(sequence)


def _sampling_seconds(
    engine: Engine, sequences: list[EngineSequence], logits: Logits | None
) -> float:
    """Repeat the step's draws alone, on the same threads, and return the seconds."""
    assert logits is not None
    draws = [
        RowDraw(s.chain, History(s.prompt_token_ids, s.output_token_ids[:-1]), s.seed, len(s) - 1)
        for s in sequences
    ]
    started = perf_counter()
    engine.backend.sample(logits, draws)
    return perf_counter() - started


# -- the benchmark ---------------------------------------------------------------------------------


Case = tuple[int, int]  # tokens of context, sequences


@dataclass(frozen=True)
class BenchmarkSettings:
    """The settings of a benchmark.

    contexts  one stream is decoded at each of these lengths
    batches   numbers of streams decoded at once, at the first of ``contexts``
    prompt    how many tokens the timed prefill has
    repeats   how often everything is measured, in turns; figures are medians
    threads, quantize, kv  see ``LLM``
    """

    contexts: tuple[int, ...] = (64, 512)
    batches: tuple[int, ...] = (1, 8)
    prompt: int = 512
    repeats: int = 5
    threads: int | None = None
    quantize: str | None = None
    kv: str = "f16"

    def __post_init__(self) -> None:
        for name, values in (("context", self.contexts), ("batch", self.batches)):
            if not values:
                raise InputError(name, " must hold at least one number")
            for value in values:
                check_int(name, value, 1, 2**24)
        check_int("prompt", self.prompt, 1, 2**24)
        check_int("repeats", self.repeats, 1, 1000)

    @property
    def cases(self) -> list[Case]:
        """The decode runs: one stream at every context, then the batches at the first context."""
        single = [(context, 1) for context in self.contexts if 1 in self.batches]
        return single + [(self.contexts[0], batch) for batch in self.batches if batch > 1]


def benchmark(
    model: str | None = None,
    settings: BenchmarkSettings = BenchmarkSettings(),
    *,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure a model on this machine; InputError where the settings need a larger one."""
    path = hub.resolve(model, progress=progress)
    noise = Noise()
    llm = LLM(
        path, backend="cpu", threads=settings.threads, quantize=settings.quantize,
        kv=settings.kv, progress=progress,
    )  # fmt: skip
    _check_room(llm, settings)
    with open_as(path, settings.quantize) as file:
        costs = costs_of(llm.graph, file.tensors, settings.kv)
        rng = np.random.default_rng(0)
        _turn(llm, rng, settings)  # warms up, and is as large as it gets
        memory = _memory(costs, settings, size_of(path))
        probe = _probe(llm, file, costs)
        turns = []
        for _ in range(settings.repeats):
            probe.turn()
            turns.append(_turn(llm, rng, settings))
    return {
        "model": llm.name,
        "settings": asdict(settings),
        "machine": _machine(llm, probe, settings),
        "costs": asdict(costs)
        | {"kv": [group._asdict() | {"layers": len(group.layers)} for group in costs.kv.groups]},
        "load_s": llm.load_s,
        "prefill": _prefill(costs, probe, settings, [t["prefill"] for t in turns]),
        "decode": [_decode(costs, probe, c, [t[c] for t in turns]) for c in settings.cases],
        "memory": memory,
        "others_share": noise.share(),
    }


def _check_room(llm: LLM, settings: BenchmarkSettings) -> None:
    """Raise InputError for a run that the context or the cache cannot hold.

    The engine would wait for ever to start such a run.
    """
    limit = llm.model.context
    longest_text = max(settings.prompt, *(longest(*case) for case in settings.cases))
    if longest_text >= limit:
        raise InputError(
            "context",
            f" or prompt needs {longest_text} tokens with what is written after it, and this "
            f"model has {limit}: lower --context or --prompt",
        )
    have = llm.engine.blocks.count
    for context, batch in settings.cases:
        need = blocks_needed(context, batch, backends.KV_BLOCK)
        if need > have:
            raise InputError(
                "batch",
                f" {batch} at context {context} needs {need} KV blocks and there are {have}: "
                "lower --batch or --context",
            )
        if batch > MOST_STREAMS:
            raise InputError(
                "batch",
                f" {batch} is more than the {MOST_STREAMS} streams of one step: lower --batch",
            )


def _turn(llm: LLM, rng: np.random.Generator, settings: BenchmarkSettings) -> dict[Any, Steps]:
    """Measure once: the prefill ("prefill"), and each case of ``settings.cases``."""
    turn: dict[Any, Steps] = {"prefill": prefill(llm, rng, settings.prompt)}
    return turn | {case: decode(llm, rng, *case) for case in settings.cases}


def _probe(llm: LLM, file: ModelFile, costs: Costs) -> Probe:
    weights = [file.tensors[op.weights["weight"]] for op in llm.graph.ops if isinstance(op, Linear)]
    largest = max(weights[:-1] or weights, key=lambda tensor: tensor.nbytes)  # of the layers
    backend: Any = llm.backend
    buffer = costs.layer_bytes + costs.head_bytes
    return Probe(backend.threads, backend.tier, buffer, file, largest)


def _machine(llm: LLM, probe: Probe, settings: BenchmarkSettings) -> dict[str, Any]:
    backend: Any = llm.backend
    return {
        "processors": os.cpu_count(),
        "threads": backend.threads,
        "threads_are": "as asked" if settings.threads else default_threads().reason,
        "tier": backend.tier,
        "prefetch": backend.prefetch,
        "read_bytes_per_s": probe.bandwidth,
        "read_buffer_bytes": probe.buffer,
        "kernel_format": probe.format,
        "kernel_ops_per_s": probe.kernel_ops,
        "kernel_fraction": median(probe.kernel_fractions) if probe.kernel_fractions else None,
        "instruction_ops_per_s": probe.instruction_ops or None,
    }


def _prefill(
    costs: Costs, probe: Probe, settings: BenchmarkSettings, steps: list[Steps]
) -> dict[str, Any]:
    tokens = settings.prompt
    ttft, plan = _medians(steps)
    limit = costs.prefill_limit(tokens, probe.bandwidth, probe.ops)
    return {
        "tokens": tokens,
        "ops_per_token": costs.layer_ops,
        "ttft_s": ttft,
        "tokens_per_s": tokens / ttft,
        "plan_tokens_per_s": tokens / plan,
        "limit_tokens_per_s": limit,
        "fraction": tokens / ttft / limit,
    }


def _decode(costs: Costs, probe: Probe, case: Case, steps: list[Steps]) -> dict[str, Any]:
    context, batch = case
    middle = context + STEPS // 2  # the text grows while it is measured
    step, plan = _medians(steps)
    outside = median(a - b for s in steps for a, b in zip(s.step, s.plan, strict=True))
    sampling = median(t for s in steps for t in s.sampling)
    limit = costs.decode_limit(middle, batch, probe.bandwidth, probe.ops)
    return {
        "context": context,
        "batch": batch,
        "bytes_per_step": costs.step_bytes(middle, batch),
        "step_s": step,
        "tokens_per_s": batch / step,
        "plan_tokens_per_s": batch / plan,
        "limit_tokens_per_s": limit,
        "fraction": batch / step / limit,
        "plan_fraction": batch / plan / limit,
        "sampling_share": sampling / step,
        "python_share": max(outside - sampling, 0.0) / step,
    }


def _medians(steps: list[Steps]) -> tuple[float, float]:
    """Return the median seconds of a step, and of the backend's run in it."""
    return median(t for s in steps for t in s.step), median(t for s in steps for t in s.plan)


def _memory(costs: Costs, settings: BenchmarkSettings, file_bytes: int) -> dict[str, Any]:
    """Return the memory figures; call it before the probe takes memory of its own."""
    stored = costs.kv.bytes_stored
    kv = max(batch * stored(context + STEPS) for context, batch in settings.cases)
    kv = max(kv, stored(settings.prompt))
    peak = peak_memory()
    return {
        "peak_bytes": peak,
        "file_bytes": file_bytes,
        "kv_bytes": kv,
        "peak_per_file_and_kv": peak and peak / (file_bytes + kv),
    }
