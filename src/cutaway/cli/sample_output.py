"""The samples of one prompt as a command prints them, one after the other; then all as JSON."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cutaway.base.progress import say
from cutaway.cli import console, reports
from cutaway.cli.terminal.streams import print_json
from cutaway.text.grammar import KINDS

if TYPE_CHECKING:
    from cutaway.methods.importance import ConstraintEstimate
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream


_CUT = ("max_tokens", "context_full")  # how a text ends that is not whole


def begin(args: Namespace, streams: "Sequence[Stream]", place: int) -> None:
    """Say which sample follows, if there are several."""
    if len(streams) > 1 and not args.json:
        print(f"--- {place + 1} of {len(streams)} · seed {streams[place].seed} ---", flush=True)


def end(
    args: Namespace, streams: "Sequence[Stream]", done: "Completion", notes: Iterable[str] = ()
) -> None:
    """End the line of a sample's text; print its notes, then ``notes``, then its statistics."""
    if len(streams) > 1 and not args.json:
        print(flush=True)
    elif not args.json:
        console.end_line(figures=not args.quiet)
    show_figures(args, done, notes)


def show_figures(args: Namespace, done: "Completion", notes: Iterable[str] = ()) -> None:
    """A text's notes, then ``notes``, then its statistics; nothing with --quiet."""
    if args.quiet:
        return
    for note in (*(f"note: {note}" for note in (*done.notes, *_cut(done))), *notes):
        say(note)
    say(reports.statistics(done, args.price))


def _cut(done: "Completion") -> Iterator[str]:
    """A note where a text under a grammar was cut, and so does not match the grammar."""
    if done.finish_reason not in (*_CUT, "aborted"):
        return
    for kind in KINDS:
        if done.params.get(kind):
            what = "JSON" if kind == "json_schema" else f"text of --{kind}"
            fix = "; raise --max-tokens" if done.finish_reason == "max_tokens" else ""
            yield f"the {what} is not whole: it was cut ({done.finish_reason}){fix}"


def finish(
    args: Namespace,
    streams: "Sequence[Stream]",
    done: "Sequence[Completion]",
    estimate: "ConstraintEstimate | None" = None,
) -> int:
    """Say what concerns all samples; print the JSON. Returns the exit code.

    130 where Ctrl-C ended a sample, 3 where one was cut and --fail-if-cut asks for that, 4 where
    one was cut that is to match a grammar, else 0.
    """
    if hasattr(args, "trace") and not args.quiet:
        console.say_where_traces_are(args.trace, range(1, 1 + len(streams)))
    if estimate and not args.quiet:
        say(reports.estimated(estimate))
    if args.json:
        more = {"constraint_estimate": estimate.to_dict()} if estimate else {}
        documents = [reports.document(one, args.price) | more for one in done]
        print_json(documents if len(documents) > 1 else documents[0])
    ends = {one.finish_reason for one in done}
    if "aborted" in ends:
        return 130
    if getattr(args, "fail_if_cut", False) and ends & {*_CUT}:
        return 3
    return 4 if any(True for one in done for _ in _cut(one)) else 0
