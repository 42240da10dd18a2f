"""``cutaway bench``: speed beside the machine's limit, as a table or one JSON document."""

from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from typing import Any

from cutaway.cli.options import arguments
from cutaway.cli.terminal.drawing import print_report
from cutaway.errors import InputError

EPILOG = """
examples:
  cutaway bench
  cutaway bench -m model.gguf --threads 2
  cutaway bench --context 64,512,2048 --batch 1,2,4,8
  cutaway bench --json | tail -n 1 | python -m json.tool

The limit of decoding follows from the measured read bandwidth (or the int8 rate) and the bytes that
a step must read: all packed weights, and the keys and values of the context. Figures are medians;
the repeats of all cases are interleaved. "plan" is the native forward pass alone, without sampling
and Python. Run it on an idle machine: the last line says how much of it other programs used.
"""
_NOISY = 0.05  # of the processors' time


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway bench``."""
    arguments.add_model(parser)
    parser.add_argument("--quantize", metavar="FORMAT", help=arguments.QUANTIZE)
    parser.add_argument("--kv", metavar="FORMAT", default="f16", help=arguments.KV)
    parser.add_argument("--threads", type=int, metavar="N", help="threads that compute")
    parser.add_argument(
        "--context", type=arguments.numbers, default=(64, 512), metavar="N,N",
        help="tokens of context before the decoded ones; default 64,512",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=arguments.numbers, default=(1, 8), metavar="N,N",
        help="sequences per step, at the first context; default 1,8",
    )  # fmt: skip
    arguments.add_number(parser, "--prompt", 512, "length of the prompt")
    arguments.add_number(parser, "--repeats", 5, "repeats of each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: Namespace) -> int:
    """Measure, print the figures, and return 0."""
    if find_spec("cutaway.base._native") is None:
        raise InputError("bench measures the native backend, which was not built here")
    from cutaway.features.measure.bench import BenchmarkSettings, benchmark

    settings = BenchmarkSettings(
        args.context, args.batch, args.prompt, args.repeats, args.threads, args.quantize, args.kv
    )
    document = benchmark(args.model, settings)
    print_report(args, lambda: document, lambda: _report(document))
    return 0


def _report(d: dict[str, Any]) -> list[str]:
    lines = [*_machine(d["model"], d["machine"]), "", *_limits(d), "", *_decode(d["decode"]), ""]
    return [*lines, *_prefill(d["prefill"]), *_memory(d), "", _noise(d["others_share"])]


def _machine(model: str, m: dict[str, Any]) -> list[str]:
    bare = m["instruction_ops_per_s"]
    kernel = f"{m['kernel_ops_per_s'] / 1e9:.0f}"
    rate = f"{kernel} GOPS as our {m['kernel_format']} kernel reaches in cache"
    if bare:
        rate += f" ({m['kernel_fraction']:.0%} of bare int8 instructions' {bare / 1e9:.0f})"
    return [
        f"{model} on {m['threads']} threads of {m['processors']} processors, {m['tier']}",
        f"  threads          {m['threads']}: {m['threads_are']}",
        f"  read bandwidth   {m['read_bytes_per_s'] / 1e9:.1f} GB/s "
        f"over {_mb(m['read_buffer_bytes'])}, the size of the packed weights",
        f"  arithmetic       {rate}",
        f"  prefetch         with one row, two and more: {m['prefetch']}",
    ]


def _limits(d: dict[str, Any]) -> list[str]:
    lines, prefill = ["limit"], d["prefill"]
    for r in d["decode"][:1]:
        lines.append(
            f"  a decode step    reads {_mb(r['bytes_per_step'])} at context {r['context']}, "
            f"batch {r['batch']}: {r['limit_tokens_per_s']:.0f} tokens/s"
        )
    return [
        *lines,
        f"  a prompt token   takes {prefill['ops_per_token'] / 1e6:.0f} million operations: "
        f"{prefill['limit_tokens_per_s']:.0f} tokens/s",
    ]


def _decode(rows: list[dict[str, Any]]) -> list[str]:
    head = "decode   context  batch   tokens/s   of limit     plan   of limit    python  sampling"
    return [head] + [
        f"{r['context']:16d} {r['batch']:6d} {r['tokens_per_s']:10.1f} {r['fraction']:10.0%}"
        f" {r['plan_tokens_per_s']:8.1f} {r['plan_fraction']:10.0%}"
        f" {r['python_share']:9.1%} {r['sampling_share']:9.1%}"
        for r in rows
    ]


def _prefill(p: dict[str, Any]) -> list[str]:
    return [
        f"prefill          {p['tokens']} tokens at {p['tokens_per_s']:.0f} tokens/s, "
        f"{p['fraction']:.0%} of the limit; the plan alone {p['plan_tokens_per_s']:.0f}",
        f"first token      {p['ttft_s']:.3f} s after a request of {p['tokens']} tokens",
    ]


def _memory(d: dict[str, Any]) -> list[str]:
    m = d["memory"]
    peak = "unknown on this system,"
    if m["peak_bytes"] is not None:
        peak = f"{_mb(m['peak_bytes'])}, {m['peak_per_file_and_kv']:.2f} times"
    return [
        f"load             {d['load_s']:.2f} s",
        f"peak memory      {peak} the file's {_mb(m['file_bytes'])} and {_mb(m['kv_bytes'])} of "
        "keys and values",
    ]


def _noise(share: float | None) -> str:
    if share is None:
        return "This system does not say how busy other programs were."
    sentence = f"Other programs used {share:.1%} of the processors' time during this"
    return sentence + (": WARNING, do not trust these figures." if share > _NOISY else ".")


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
