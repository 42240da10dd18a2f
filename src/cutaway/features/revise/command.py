"""``cutaway revise``: a draft, and what becomes of it when its worst tokens are tried again."""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import zip_longest
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from cutaway.base.progress import say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, streams
from cutaway.cli.terminal.drawing import PLAIN, REVERSE, Line, Span, Style, clip, table, width
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.revise.revise import Piece, Revised, RevisionTrial

COMMON = "-m --draft --rule --sweeps --max-tokens --temperature --seed --json"
EPILOG = """
examples:
  cutaway revise "The capital of France is" --max-tokens 40 --sweeps 2
  cutaway revise --draft "Paris is the bananas of France." --rule better --trials
  cutaway revise --draft "A text." --rule better --filler path/to/bert
  cutaway revise "Q: Why is the sky blue?\\nA:" --rule metropolis --span 8 --json

A draft is written, or given. Its most surprising tokens are tried again, the worst first:
  gibbs       a token is drawn given all tokens before and after it
  metropolis  the text from a position on is drawn again, and accepted by both texts' probability
  better      the best token is taken if the text is likelier with it
The first two draw from a power of the model's own distribution over texts. What changed is marked;
Ctrl-C keeps the revision so far.
"""
_TEXT = 28  # columns in which a trial's tokens are shown
_GAP = " │ "


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway revise``."""
    prompt = "what the draft continues; - reads standard input"
    parser.add_argument("prompt", nargs="?", default="", help=prompt)
    parser.add_argument(
        "--draft", metavar="TEXT", help="revise this instead of what the loop writes; - likewise"
    )
    group = parser.add_argument_group("revision")
    group.add_argument(
        "--rule", default="gibbs", metavar="NAME", help="gibbs (default), metropolis or better"
    )
    power = "of the model's own distribution over texts, for gibbs and metropolis"
    arguments.add_number(group, "--power", 4.0, power, metavar="A")
    share = "which share of the tokens is tried, the most surprising"
    arguments.add_number(group, "--share", 0.2, share, metavar="S")
    arguments.add_number(group, "--sweeps", 1, "how often each is tried")
    group.add_argument(
        "--surprise", default="loop", metavar="NAME",
        help="given which text a token's surprise is measured: loop (default): before it; "
        "leave_one_out: also after it, which takes long",
    )  # fmt: skip
    candidates = "tokens that are tried in a place, for gibbs and better"
    arguments.add_number(group, "--candidates", 16, candidates, metavar="K", dest="tried")
    group.add_argument(
        "--span", type=int, metavar="N", help="tokens that metropolis draws anew; default: all"
    )
    group.add_argument(
        "--filler", metavar="NAME|PATH",
        help="for better: a model that sees a text as a whole (BERT) refills its words",
    )  # fmt: skip
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    parser.add_argument("--trials", action="store_true", help="also print each trial")
    arguments.add_report_arguments(parser, "no progress and no figures")


def run(args: Namespace) -> int:
    """Print draft and revision side by side."""
    if not args.prompt and args.draft is None:
        raise InputError("give a prompt to write a draft from, or a text with --draft")
    if args.prompt == args.draft == "-":
        raise InputError("standard input can be the prompt or the draft: give one of them here")
    options = namespace.request_options(args)
    prompt = namespace.read_text(args.prompt)
    draft = None if args.draft is None else namespace.read_text(args.draft)
    llm, stop = console.load(args), console.Stop()
    filler = None if args.filler is None else type(llm)(args.filler, progress=not args.quiet)
    with (
        console.progress(show=not args.quiet, figures=_trials, after=1) as progress,
        console.stoppable(stop),
    ):
        done = llm.revise(
            prompt, draft, rule=args.rule, power=args.power, share=args.share, sweeps=args.sweeps,
            surprise=args.surprise, candidates=args.tried, span=args.span, filler=filler,
            progress=progress, stopped=lambda: stop.stop_asked, **options,
        )  # fmt: skip
    if args.json:
        streams.print_json(done.to_dict())
    else:
        style = Style.from_stream(sys.stdout)
        cells = get_terminal_size().columns
        print("\n".join(_side_by_side([*done.pieces(llm.tokenizer)], style, cells)))
        if args.trials:
            print("\n".join(["", *map(style.text, _table(done))]))
    if not args.quiet:
        say(_figures(done))
    return 0


def _trials(done: int, total: int, seconds: float) -> str:
    return f"{done} of {total}, {seconds:.0f} s"


def _figures(done: "Revised") -> str:
    cost, trial_count = done.cost, len(done.trials)
    change_count = sum(trial.accepted and trial.was != trial.proposed for trial in done.trials)
    trials_text = (
        f"{trial_count} of {done.planned}" if trial_count < done.planned else f"{trial_count}"
    )
    return (
        f"[{trials_text} trials, {change_count} changed the text; "
        f"{done.bits_before:.1f} bits before, {done.bits_after:.1f} after; {cost.passes} passes, "
        f"{cost.rows} rows, {cost.seconds:.1f} s; seed {done.seed}]"
    )


# -- two columns -------------------------------------------------------------------------------


def _side_by_side(pieces: "list[Piece]", style: Style, cells: int) -> Iterator[str]:
    """Lines with draft and revision side by side; changes are in reverse video or in brackets."""
    room = max((cells - width(_GAP)) // 2, 12)
    left = _wrap([("draft", False)], style, room)
    right = _wrap([("revision", False)], style, room)
    left += _wrap([(piece.was, piece.changed) for piece in pieces], style, room)
    right += _wrap([(piece.now, piece.changed) for piece in pieces], style, room)
    nothing: Line = []
    for draft_line, revised_line in zip_longest(left, right, fillvalue=nothing):
        padding = (" " * (room - sum(width(text) for text, _ in draft_line)) + _GAP, PLAIN)
        yield style.render([*draft_line, padding, *revised_line], 2 * room + width(_GAP)).rstrip()


def _wrap(texts: list[tuple[str, bool]], style: Style, room: int) -> list[Line]:
    """Break texts into lines of at most ``room`` cells, before words where possible."""
    lines: list[Line] = [[]]
    left = room
    for word, look in (word for span in texts for word in _words(*span, style)):
        fits = width(word) <= left
        if not fits and left < room:
            lines.append([])
            left = room
        for part in [word] if fits else _cut(word.lstrip(" "), room):
            if width(part) > left:
                lines.append([])
                left = room
            lines[-1].append((part, look))
            left -= width(part)
    return lines


def _cut(word: str, room: int) -> Iterator[str]:
    """Cut a word into pieces that fit into a line."""
    while word:
        part = clip(word, room)
        yield part
        word = word[len(part) :]


def _words(text: str, changed: bool, style: Style) -> Iterator[Span]:
    text_shown = style.text(text)
    bare = text_shown.lstrip(" ")
    if changed and not style.ansi:
        opened, closed = style.pick("‹", "<"), style.pick("›", ">")
        text_shown = text_shown[: len(text_shown) - len(bare)] + opened + bare + closed
    for word in re.findall(r" *[^ ]+| +", text_shown):
        start = word.lstrip(" ") if changed else word
        if start != word:
            yield word[: len(word) - len(start)], PLAIN
        if start:
            yield start, REVERSE if changed else PLAIN


# -- every trial -------------------------------------------------------------------------------


def _table(done: "Revised") -> list[str]:
    head = ("trial", "at", "was", "tried", "bits less", "chance", "luck", "")
    rows = [
        (
            f"{trial.index:5}", f"{trial.position:2}", clip(repr(trial.was_text), _TEXT),
            clip(repr(trial.proposed_text), _TEXT), f"{trial.gain:9.2f}",
            f"{trial.chance:6.3f}", f"{trial.luck:.3f}", _verdict(trial),
        )
        for trial in done.trials
    ]  # fmt: skip
    return table([head, *rows])


def _verdict(trial: "RevisionTrial") -> str:
    if trial.was == trial.proposed:
        return "the same"
    return "taken" if trial.accepted else "not taken"
