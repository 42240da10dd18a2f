"""What is measured, and which ratios must be reached for a model of what size. Knows no engine."""

from dataclasses import dataclass

from peers.table import Metric, Target


def _decode(context: int, batch: int = 1) -> dict[str, int | str]:
    return {"do": "decode", "context": context, "batch": batch}


METRICS = (
    Metric("decode64", "one stream at context 64", "tokens/s", _decode(64), digits=1),
    Metric("decode512", "one stream at context 512", "tokens/s", _decode(512), digits=1),
    Metric("decode4096", "one stream at context 4,096", "tokens/s", _decode(4096), digits=1),
    Metric("decode7000", "one stream at context 7,000", "tokens/s", _decode(7000), digits=1),
    Metric("batch8", "8 streams at context 64", "tokens/s", _decode(64, 8)),
    Metric("batch32", "32 streams at context 64", "tokens/s", _decode(64, 32)),
    Metric("prefill", "a prompt of 512", "tokens/s", {"do": "prefill", "tokens": 512}),
    Metric("prefill4096", "a prompt of 4,096", "tokens/s", {"do": "prefill", "tokens": 4096}),
    Metric("prefill7000", "a prompt of 7,000", "tokens/s", {"do": "prefill", "tokens": 7000}),
    Metric("cold", "from a cold process to its first text", "s", None, True, 1.0, 2),
    Metric("memory", "peak memory of that process", "MB", None, True, 1e-6),
)
USUAL = ("decode64", "decode512", "batch8", "prefill", "cold", "memory")


@dataclass(frozen=True)
class Goals:
    """Of the models with at most so many parameters.

    memory: peak of a generate process, by the file and the keys and values in use
    """

    parameters: float
    targets: tuple[Target, ...]
    memory: float


_SMALL = (
    Target("decode64", "llama", 1.8),
    Target("decode64", "llama", 1.3, other_format=True),
    Target("decode512", "llama", 2.5),
    Target("decode7000", "llama", 4.0),
    Target("batch8", "llama", 4.0),
    Target("prefill", "llama", 6.0),
    Target("prefill7000", "llama", 7.0),
    Target("prefill", "openvino", 1.1),
    Target("prefill", "openvino", 1.1, other_format=True),
    Target("cold", "llama", 1.35),
)
_LARGE = (
    Target("decode64", "llama", 1.6),
    Target("decode64", "limit", 0.85),
    Target("decode512", "llama", 1.6),
    Target("decode512", "limit", 0.85),
    Target("batch8", "llama", 5.0),
    Target("batch32", "llama", 6.0),
    Target("prefill", "llama", 3.0),
    Target("prefill", "openvino", 1.8),
    Target("cold", "llama", 1.0),
)
GOALS = (Goals(5e8, _SMALL, 1.4), Goals(float("inf"), _LARGE, 1.1))


def goals_of(parameters: int) -> Goals:
    """Those of a model with so many parameters."""
    return next(goals for goals in GOALS if parameters <= goals.parameters)
