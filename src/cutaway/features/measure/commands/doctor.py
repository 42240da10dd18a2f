"""``cutaway doctor``: what a quantisation costs on a text of one's own, tensor by tensor."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say
from cutaway.cli import arguments, console, namespace, svg
from cutaway.cli.terminal.drawing import Style, print_lines
from cutaway.cli.terminal.streams import print_json
from cutaway.errors import InputError
from cutaway.features.measure.commands import doctor_tables

if TYPE_CHECKING:
    from cutaway.features.measure.doctor import Diagnosis, Doctor, ModelChange, TensorCost

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

In brackets is what holds 95 %: a bootstrap of runs of 16 neighbouring positions for means and
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
    parser.add_argument("--backend", metavar="NAME", help="what computes: cpu or reference")
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Examine, and print what was found as it is found."""
    plan, text, stop = _Plan.of(args), namespace.read_file(args.text), console.Stop()
    from cutaway.features.measure.doctor import Doctor

    bars = _Bars(show=not args.quiet)
    with console.stoppable(stop), bars:
        try:
            with Doctor(
                args.base, text, tokens=args.tokens, window=args.window, top=args.top,
                backend=args.backend, threads=args.threads, progress=bars,
                stopped=lambda: stop.stop_asked,
            ) as doctor:  # fmt: skip
                found = _examine(args, plan, doctor, bars)
        except KeyboardInterrupt:
            bars.end()
            say("stopped; the tensors that were measured are kept: the same command goes on")
            raise
    if args.json:
        print_json(found)
    return 0


class _Bars:
    """A bar for each thing that is done, ended before anything is printed."""

    def __init__(self, *, show: bool) -> None:
        self._show, self._open = show, ExitStack()
        self._report: Callable[[str, int, int], None] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._report is None:
            shown = console.progress(show=self._show, figures=_figures, after=1)
            self._report = self._open.enter_context(shown)
        self._report(what, done, total)

    def end(self) -> None:
        """End the last one."""
        self._open.close()
        self._report = None

    def __enter__(self) -> None:
        """Nothing; a bar begins when there is something to tell."""

    def __exit__(self, *_: object) -> None:
        self.end()


def _figures(done: int, total: int, seconds: float) -> str:
    left = f", {seconds * (total - done) / done:.0f} s left" if 0 < done < total else ""
    return f"{done / total:4.0%}, {seconds:.0f} s{left}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is asked: whole changes, the formats of single tensors, and the size of a mix."""

    changes: "tuple[ModelChange, ...]"
    formats: tuple[str, ...]
    under: int | None
    output: Path | None

    @classmethod
    def of(cls, args: Namespace) -> "_Plan":
        """InputError for arguments that do not go together."""
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
    """All that was asked, printed as it is found; the JSON document of it."""

    def tell(lines: Callable[[], Iterable[str]]) -> None:
        bars.end()
        if not args.json:
            print_lines(lines())
            sys.stdout.flush()

    def diagnosed(change: "ModelChange") -> "Diagnosis":
        found = doctor.diagnose(
            change, draws=args.draws, draw_tokens=args.draw_tokens, temperature=args.temperature
        )
        tell(lambda: doctor_tables.diagnosis(found, doctor))
        return found

    if plan.under is not None:
        doctor.check_size(plan.under, args.quant, formats=plan.formats)
    tell(lambda: doctor_tables.head(doctor))
    document: dict[str, Any] = {"base": doctor.base, "positions": doctor.positions}
    document |= {"nbytes": doctor.nbytes, "kv_bytes": doctor.kv_bytes}
    document["changes"] = [diagnosed(change).to_dict() for change in plan.changes]
    if not args.tensors or not (plan.formats or args.quant):
        return document
    costs = [*doctor.tensors(args.quant, formats=plan.formats)]
    tell(lambda: doctor_tables.tensors(Style.of(sys.stdout), costs))
    document["tensors"] = [cost.to_dict() for cost in costs]
    if args.svg:
        svg.write(args.svg, _drawing(costs, doctor))
    if plan.under is not None and plan.output is not None:
        mix = doctor.mix(costs, plan.under)
        tell(lambda: doctor_tables.mix(mix, costs, doctor))
        doctor.write(mix, plan.output, args.quant, formats=plan.formats)
        document["mix"] = asdict(mix) | {"output": str(plan.output)}
        from cutaway.features.measure.doctor import ModelChange

        document["mix"] |= diagnosed(ModelChange(quant=plan.output)).to_dict()
    return document


def _drawing(costs: "Sequence[TensorCost]", doctor: "Doctor") -> str:
    """A map for each format."""
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
