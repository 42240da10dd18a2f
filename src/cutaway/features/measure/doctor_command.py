"""``cutaway doctor``: the damage of a quantisation on the user's own text, tensor by tensor."""

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import megabytes, say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import Style, print_lines, table
from cutaway.cli.terminal.streams import print_json
from cutaway.errors import InputError
from cutaway.features.measure import svg

if TYPE_CHECKING:
    from cutaway.features.measure.doctor import (
        Diagnosis,
        Doctor,
        ModelChange,
        Parted,
        ProposedMix,
        TensorCost,
    )
    from cutaway.rerun import Estimate


EPILOG = """
examples:
  cutaway doctor model-f16.gguf model-q4_1.gguf --text mine.txt
  cutaway doctor model-f16.gguf --formats q4_0,q4_1,q6_k --text mine.txt --no-tensors
  cutaway doctor model-f16.gguf --formats q4_0,q6_k --text mine.txt --under 95MB --output mix.gguf
  cutaway doctor smollm2 --kv q8_0 --kv q8_0,q4_0 --text mine.txt

BASE reads the text once, then each change of it: another file of its weights (QUANT), its matrices
in other formats (--formats), its keys and values in other formats (--kv). Of each:

  KL         KL(BASE || it) over the vocabulary, in nats: the mean over the positions, the 99th
             percentile and the largest
  flips      positions where the likeliest token is another
  perplexity  of the text, as a multiple of BASE's
  top        how many of BASE's likeliest tokens are among its own
  drawn      texts drawn from both with the same luck: how many differ, and after how many tokens

Brackets have intervals of 95 %: by a bootstrap of runs of 16 neighbouring positions for means and
percentiles, Wilson's interval for shares. They speak of this text, not of other kinds of text.

Then one tensor at a time is changed and the rest is as in BASE, which takes as long as reading the
text once for each tensor and format. What was measured is kept in the user's cache: after Ctrl-C
the same command goes on. --under SIZE takes, tensor by tensor, the format that costs least KL for
each byte saved until all tensors fit, writes that mix to --output, and measures it.

A BASE in F16, BF16 or F32 gives the clearest figures: where weights are quantised activations are
rounded, too, and any small change moves some of these. cutaway quantize BASE twin.gguf --to f16
makes one.
"""
COMMON = "--text --formats --kv --no-tensors --under --output --svg --json"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway doctor``."""
    parser.add_argument("base", metavar="BASE", help="a name, .gguf file, folder, or hf:org/repo")
    parser.add_argument("quant", metavar="QUANT", nargs="?", help="the same model, quantised")
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="a text in UTF-8; - reads standard input"
    )
    parser.add_argument(
        "--formats", metavar="F,F", help="BASE's matrices in these formats, as of quantize"
    )
    parser.add_argument(
        "--kv", metavar="FORMAT", action="append", default=[],
        help="BASE with keys and values in this format, as of generate; repeat for more",
    )  # fmt: skip
    parser.add_argument(
        "--no-tensors", dest="tensors", action="store_false", help="no tensor by tensor"
    )
    parser.add_argument(
        "--under", type=arguments.size, metavar="SIZE",
        help="propose a mix of formats that takes at most SIZE, such as 95MB",
    )  # fmt: skip
    parser.add_argument("--output", metavar="OUT", help="the .gguf file to write the mix to")
    parser.add_argument("--svg", metavar="FILE", help="draw a map of what each tensor costs")
    arguments.add_number(parser, "--tokens", 1024, "of the text, at most")
    arguments.add_number(parser, "--window", 512, "tokens that are read as one text")
    arguments.add_number(parser, "--top", 10, "likeliest tokens that are compared")
    arguments.add_number(parser, "--draws", 32, "pairs of texts drawn with the same luck")
    arguments.add_number(parser, "--draw-tokens", 48, "of each of these texts")
    arguments.add_number(parser, "--temperature", 1.0, "at which they are drawn")
    parser.add_argument("--backend", metavar="NAME", help="what computes: cpu, gpu or reference")
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Examine, print each result as soon as it is measured, and return 0."""
    plan, text, stop = _Plan.from_args(args), namespace.read_file(args.text), console.Stop()
    from cutaway.features.measure.doctor import Doctor

    bars = _Bars(show=not args.quiet)
    with console.stoppable(stop), bars:
        try:
            with Doctor(
                args.base, text, tokens=args.tokens, window=args.window, top=args.top,
                backend=args.backend, threads=args.threads, progress=bars,
                stopped=lambda: stop.stop_asked,
            ) as doctor:  # fmt: skip
                document = _examine(args, plan, doctor, bars)
        except KeyboardInterrupt:
            bars.end()
            say("stopped; the tensors that were measured are kept: the same command goes on")
            raise
    if args.json:
        print_json(document)
    return 0


class _Bars:
    """A progress bar for each task, which ends before anything is printed."""

    def __init__(self, *, show: bool) -> None:
        self._show, self._open = show, ExitStack()
        self._report: Callable[[str, int, int], None] | None = None

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._report is None:
            bar = console.progress(show=self._show, figures=_figures, after=1)
            self._report = self._open.enter_context(bar)
        self._report(task, done, total)

    def end(self) -> None:
        """End the open bar, if there is one."""
        self._open.close()
        self._report = None

    def __enter__(self) -> None:
        """Show nothing yet: a bar begins with its task."""

    def __exit__(self, *_: object) -> None:
        self.end()


def _figures(done: int, total: int, seconds: float) -> str:
    left = f", {seconds * (total - done) / done:.0f} s left" if 0 < done < total else ""
    return f"{done / total:4.0%}, {seconds:.0f} s{left}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The requested measurements: whole changes, formats of single tensors, and a mix's size."""

    changes: "tuple[ModelChange, ...]"
    formats: tuple[str, ...]
    under: int | None
    output: Path | None

    @classmethod
    def from_args(cls, args: Namespace) -> "_Plan":
        """Read the plan from arguments; InputError where they conflict."""
        from cutaway.features.measure.doctor import ModelChange, check_draws

        check_draws(args.draws, args.draw_tokens, args.window)
        formats = tuple(args.formats.split(",")) if args.formats else ()
        changes = [ModelChange(quantize=format) for format in formats]
        changes += [ModelChange(quant=args.quant)] if args.quant else []
        changes += [ModelChange(kv=kv) for kv in args.kv]
        if args.quant and formats:
            raise InputError("--formats are of BASE's own weights: leave QUANT or --formats out")
        if not changes:
            raise InputError("nothing to examine: name QUANT, --formats F,F or --kv FORMAT")
        if (args.under is None) != (args.output is None):
            raise InputError("--under SIZE and --output OUT belong together: give both")
        if args.under is None:
            return cls(tuple(changes), formats, None, None)
        if not (args.quant or formats) or not args.tensors:
            raise InputError("--under needs QUANT or --formats, whose tensors are measured")
        return cls(tuple(changes), formats, args.under, _output(args.output))


def _examine(args: Namespace, plan: _Plan, doctor: "Doctor", bars: _Bars) -> dict[str, Any]:
    """Measure and print all that the plan has, and return its JSON document."""

    def tell(lines: Callable[[], Iterable[str]]) -> None:
        bars.end()
        if not args.json:
            print_lines(lines())
            sys.stdout.flush()

    def diagnose(change: "ModelChange") -> "Diagnosis":
        diagnosis = doctor.diagnose(
            change, draws=args.draws, draw_tokens=args.draw_tokens, temperature=args.temperature
        )
        tell(lambda: diagnosis_lines(diagnosis, doctor))
        return diagnosis

    if plan.under is not None:
        doctor.check_size(plan.under, args.quant, formats=plan.formats)
    tell(lambda: head_lines(doctor))
    document: dict[str, Any] = {"base": doctor.base, "positions": doctor.positions}
    document |= {"nbytes": doctor.nbytes, "kv_bytes": doctor.kv_bytes}
    document["changes"] = [diagnose(change).to_dict() for change in plan.changes]
    if not args.tensors or not (plan.formats or args.quant):
        return document
    costs = [*doctor.tensors(args.quant, formats=plan.formats)]
    tell(lambda: tensor_table(Style.from_stream(sys.stdout), costs))
    document["tensors"] = [cost.to_dict() for cost in costs]
    if args.svg:
        svg.write(args.svg, _drawing(costs, doctor))
    if plan.under is not None and plan.output is not None:
        mix = doctor.mix(costs, plan.under)
        tell(lambda: mix_table(mix, costs, doctor))
        doctor.write(mix, plan.output, args.quant, formats=plan.formats)
        document["mix"] = asdict(mix) | {"output": str(plan.output)}
        from cutaway.features.measure.doctor import ModelChange

        document["mix"] |= diagnose(ModelChange(quant=plan.output)).to_dict()
    return document


def _drawing(costs: "Sequence[TensorCost]", doctor: "Doctor") -> str:
    """Draw the map of tensors, with rows for each format."""
    from cutaway.features.measure.doctor import map_of_tensors

    return map_of_tensors(costs, f"{doctor.base}: KL of one tensor at a time")


def _output(name: str) -> Path:
    path = Path(name).expanduser()
    if path.suffix.lower() != ".gguf":
        raise InputError(f"--output must be a name that ends in .gguf, not {name!r}")
    if path.exists():
        raise InputError(f"--output: {path} exists; name a new file")
    from cutaway.base.whole_files import check_place

    check_place(path)
    return path


# -- the results, as lines of text -----------------------------------------------------------------


_WORST, _BAR = 12, 16
"""How many tensors are listed; how many cells the longest bar has."""


def head_lines(doctor: "Doctor") -> list[str]:
    """Describe BASE and the text."""
    return [
        f"BASE {doctor.base}: {megabytes(doctor.nbytes)} of tensors, {doctor.kv_bytes:,} bytes of "
        f"keys and values a token",
        f"{doctor.positions} positions of the text, in windows of {doctor.window} tokens; in "
        "brackets: what holds 95 %",
    ]


def diagnosis_lines(diagnosis: "Diagnosis", doctor: "Doctor") -> Iterator[str]:
    """Describe one change."""
    damage, share = diagnosis.damage, diagnosis.nbytes / doctor.nbytes
    size = f"{megabytes(diagnosis.nbytes)} of tensors, {share:.0%} of BASE's"
    if diagnosis.kv_bytes != doctor.kv_bytes:
        share = diagnosis.kv_bytes / doctor.kv_bytes
        size = f"{diagnosis.kv_bytes:,} bytes a token, {share:.0%} of BASE's"
    yield from ("", f"{diagnosis.change}   {size}")
    yield (
        f"  KL          {_nats(damage.kl)} nats; 99th percentile {_nats(damage.kl_p99)}; largest "
        f"{damage.kl_most:.2g}"
    )
    yield f"  flips       {_percent(damage.flips)} of the likeliest tokens"
    ratio = damage.perplexity_ratio
    yield f"  perplexity  × {ratio.mean:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
    yield f"  top {damage.top:<7} {_percent(damage.overlap)} of them stay"
    if diagnosis.drawn is not None:
        yield f"  drawn       {_describe_pairs(diagnosis.drawn)}"


def _describe_pairs(pairs: "Parted") -> str:
    places = [place for place in pairs.parted_at if place is not None]
    counts = f"{len(places)} of {pairs.texts} texts of {pairs.tokens} tokens differ"
    interval = f"[{pairs.differ.low:.0%}, {pairs.differ.high:.0%}]"
    median_text = f"; equal before: {median(places):g} tokens, the median" if places else ""
    return f"{counts} {interval}{median_text}"


def tensor_table(style: Style, costs: "Sequence[TensorCost]") -> Iterator[str]:
    """Describe the worst tensors, then sums by kind and by layer, of each format."""
    from cutaway.features.measure.doctor.findings import place_of

    worst = sorted(costs, key=lambda cost: -cost.damage.kl.mean)[:_WORST]
    largest = max((cost.damage.kl.mean for cost in worst), default=0.0) or 1.0
    yield ""
    yield f"One tensor at a time, the rest as in BASE; the worst {len(worst)} of {len(costs)}:"
    rows = [("TENSOR", "FORMAT", "SAVES", "KL, nats", "", "FLIPS")]
    for cost in worst:
        kl = cost.damage.kl
        rows.append((
            cost.tensor, cost.format, megabytes(cost.saved), _nats(kl),
            style.bar(max(kl.mean, 0.0) / largest, _BAR), f"{cost.damage.flips.mean:.1%}",
        ))  # fmt: skip
    yield from table(rows)
    for format in dict.fromkeys(cost.format for cost in costs):
        format_costs = [cost for cost in costs if cost.format == format]
        yield from ("", f"{format}: KL of each alone, added up by kind; the line shows its layers")
        yield from _kinds(style, format_costs, [place_of(cost.tensor) for cost in format_costs])


def _kinds(
    style: Style, costs: "Sequence[TensorCost]", places: Sequence[tuple[str, int | None]]
) -> Iterator[str]:
    saved, kls_by_kind = Counter[str](), dict[str, list[float]]()
    for (kind, _), cost in zip(places, costs, strict=True):
        saved[kind] += cost.saved
        kls_by_kind.setdefault(kind, []).append(max(cost.damage.kl.mean, 0.0))
    largest = max(map(max, kls_by_kind.values())) or 1.0
    sums = {
        kind: sum(kls_by_kind[kind])
        for kind in sorted(kls_by_kind, key=lambda kind: -sum(kls_by_kind[kind]))
    }
    highest = max(sums.values()) or 1.0
    yield from table([
        (
            kind, f"saves {megabytes(saved[kind])}", f"{total:.2e}",
            style.bar(total / highest, _BAR), style.spark(kl / largest for kl in kls_by_kind[kind]),
        )
        for kind, total in sums.items()
    ])  # fmt: skip


def mix_table(mix: "ProposedMix", costs: "Sequence[TensorCost]", doctor: "Doctor") -> Iterator[str]:
    """Describe the proposed mix."""
    counts = Counter(mix.formats.values())
    stay = len({cost.tensor for cost in costs}) - len(mix.formats)
    parts = [f"{count} in {format}" for format, count in counts.most_common()]
    parts += [f"{stay} as in BASE"] if stay else []
    yield ""
    size = f"{megabytes(mix.nbytes)} of tensors, {mix.nbytes / doctor.nbytes:.0%} of BASE's"
    yield f"Proposed: {size}: {', '.join(parts)}"
    yield f"The KL of each of them alone adds up to {mix.kl:.3g} nats"


def _nats(kl: "Estimate") -> str:
    return (
        f"{kl.mean:.2e} [{kl.low:.2e}, {kl.high:.2e}]"
        if kl.high < 1e-3
        else (f"{kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}]")
    )


def _percent(share: "Estimate") -> str:
    return f"{share.mean:.1%} [{share.low:.1%}, {share.high:.1%}]"
