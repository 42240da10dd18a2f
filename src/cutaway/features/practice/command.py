"""``cutaway practice``: a step of the model, as questions and answers in the terminal."""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, get_args

from cutaway.base.checks import check_choice, check_int
from cutaway.base.counting import check_index, count_from_1
from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import BOLD, PLAIN, Style, fit, width
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.practice import Verdict
    from cutaway.features.practice.exercises import Block, Exercise, Table
    from cutaway.features.practice.start import Start
    from cutaway.trace import Trace


EPILOG = """
topics, asked if none is named:
  softmax, entropy, greedy, sampling, top-k, top-p, temperature, thousand
a topic on canvases:
  cells        which masked cell does a rule reveal next?
a topic on ways to write, for which the model runs:
  ways         direction, mistakes, and what it costs; -m toy-canvas reveals canvases
topics on what happened before the logits, for which the model runs:
  mask         a later word changes: which numbers move?
  attention    who looked at whom, and who mattered?
  lens         after how many layers is the answer there?
  induction    a made-up name comes again: which token does a head look at?
  cut          the head of the largest attribution is ablated: how much is lost?
  experts      of a mixture: which compute a token, with which shares?

examples:
  cutaway practice
  cutaway practice top-k top-p --seed 7
  cutaway practice cells
  cutaway practice ways -m toy-canvas
  cutaway practice mask attention lens
  cutaway practice mask --from run.trace --step 12 -m model.gguf
  cutaway practice --from run.trace --step 12     a step of your own run
  cutaway practice --answers                      print the worked solution
  printf 'mat\\n' | cutaway practice greedy        one answer per line

A probability is right within 0.005: .446, 0.45 and 45% are the same. Name a token by its text or
its number. A wrong or empty answer gets a hint and a second try, but not from a pipe. ? shows
help; q, Ctrl-D or Ctrl-C quits. The exit code is 0 however many answers were right.
"""
_KEYS = "After a wrong answer there is a second try; Enter alone shows a hint; ? helps; q quits."
_HELP = (
    "Type your answer and press Enter. A probability is right within 0.005: .446, 0.45 and 45% are "
    "the same. Name a token by its text or its number. Enter alone shows a hint, and after a "
    "second wrong answer the solution. q, Ctrl-D or Ctrl-C quits. Luck is a random number for each "
    "token: the token with the highest logit + luck is drawn."
)

Mark = Literal["right", "right at the second try", "missed"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway practice``."""
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="topics to practise; default: all"
    )
    parser.add_argument("--answers", action="store_true", help="print the worked solution")
    luck = parser.add_mutually_exclusive_group()  # a recorded run has its own luck
    luck.add_argument("--seed", type=int, metavar="S", help="seed of the luck (the random numbers)")
    luck.add_argument("--from", dest="trace", metavar="TRACE", help="use a step of this trace")
    parser.add_argument(
        "--step",
        type=arguments.read_step,
        metavar="N",
        help="the step, from 1; default: the most uncertain",
    )
    arguments.add_loading_arguments(parser)
    parser.set_defaults(quiet=False)


def run(args: Namespace) -> int:
    """Ask, judge and sum up. Return 0 however many answers were right, 130 after Ctrl-C."""
    from cutaway.features.practice.cells import TOPIC
    from cutaway.features.practice.exercises import TOPICS, comparison, exercises
    from cutaway.features.practice.lessons import LESSONS
    from cutaway.features.practice.lessons.ways import TOPIC as WAYS

    for topic in args.topics:
        check_choice("topic", topic, (*TOPICS, TOPIC, WAYS, *LESSONS))
    inside = [topic for topic in args.topics if topic in LESSONS]
    sampling = [topic for topic in args.topics if topic in TOPICS]
    page, trace, start, questions = Page(), _trace(args), None, list["Exercise"]()
    if sampling or not args.topics:
        start = _start(args, trace)
        questions += exercises(start, sampling)
        _open(page, f"{start.text} …", _sampling(start))
    if TOPIC in args.topics:
        questions += _cells(page, args, trace)
    if WAYS in args.topics:
        questions += _ways(page, args)
    if inside:
        questions += _ask_inside(page, args, trace, inside)
    done, code = True, 0
    if args.answers:
        _solve(page, questions)
    else:
        done, code = _ask_all(page, questions)
    if done and start and not args.topics:
        page.show(comparison(start))
    return code


def _trace(args: Namespace) -> "Trace | None":
    from cutaway.trace import Trace

    if args.step is not None and args.trace is None:
        raise InputError("--step needs a trace: name it with --from")
    if args.trace is None:
        return None
    trace = Trace.read(args.trace)
    if trace.steps:
        check_index("--step", args.step, range(len(trace.steps)))
    return trace


def _start(args: Namespace, trace: "Trace | None") -> "Start":
    from cutaway.features.practice.start import SAMPLE, from_trace
    from cutaway.sampling.params import MAX_SEED

    start = SAMPLE if trace is None else from_trace(trace, args.step)
    if args.seed is None:
        return start
    return replace(start, seed=check_int("seed", args.seed, 0, MAX_SEED))


def _ways(page: "Page", args: Namespace) -> "Sequence[Exercise]":
    """Return the questions on the model's ways to generate a text, after an introduction."""
    from cutaway.features.practice.lessons.ways import ways

    here = ways(console.load(args), args.seed)
    _open(page, f"{here.text} …", here.introduction)
    return here.exercises


def _cells(page: "Page", args: Namespace, trace: "Trace | None") -> "Sequence[Exercise]":
    """Return the questions on the cells of the sample or of a pass, after an introduction."""
    from cutaway.features.practice.cells import SAMPLE_CELLS, cell_exercises, cells_of_trace

    cells = SAMPLE_CELLS if trace is None else cells_of_trace(trace, args.step)
    _open(page, cells.text, cells.introduction)
    return cell_exercises(cells)


def _ask_inside(
    page: "Page", args: Namespace, trace: "Trace | None", topics: "Sequence[str]"
) -> "Sequence[Exercise]":
    """Return the lessons on a step, after a sentence that names the step."""
    from cutaway.features.practice.lessons import lessons, scene

    here = scene(console.load(args), trace, args.step, args.seed)
    questions = lessons(here, topics)
    _open(page, f"{here.text} …", here.introduction)
    return questions


def _open(page: "Page", title: str, introduction: str) -> None:
    page.say(title, bold=True)
    print()
    page.show(introduction)


def _sampling(start: "Start") -> str:
    """Introduce the topics on the sampling chain."""
    place, rest, run = "", "", start.run
    if run is not None:
        place = f" at step {count_from_1(run.step)} of your run"
        rest = f" All other tokens, with a probability of {start.left_out:.3f}, are left out."
    return (
        f"Which token comes next{place}? Here are {len(start.names)}, with their logits z.{rest} "
        f"The luck is the same in every exercise: that of seed {start.seed}, position "
        f"{start.position}. Figures are shown rounded."
    )


def _solve(page: "Page", questions: "Sequence[Exercise]") -> None:
    for n, exercise in enumerate(questions, 1):
        page.say(f"[{n}/{len(questions)}] {exercise.topic}", bold=True)
        page.say(exercise.question)
        page.say(f"The answer: {exercise.answer.solution}", bold=True)
        print()
        page.show(*exercise.arithmetic)


def _ask_all(page: "Page", questions: "Sequence[Exercise]") -> tuple[bool, int]:
    """Ask all questions; return whether all were answered, and the exit code: 130 after Ctrl-C."""
    marks, code = list[Mark](), 0
    if sys.stdin.isatty():
        page.show(_KEYS)
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401  line editing for input()
    try:
        _ask_each(page, questions, marks)
    except KeyboardInterrupt:
        print()
        code = 130
    page.say(_summary(marks, len(questions)), bold=True)
    print()
    return len(marks) == len(questions), code


def _ask_each(page: "Page", questions: "Sequence[Exercise]", marks: list[Mark]) -> None:
    """Ask the questions in order, and mark the answers, until they end or the user quits."""
    for n, exercise in enumerate(questions, 1):
        page.say(f"[{n}/{len(questions)}] {exercise.topic}", bold=True)
        mark = _ask(page, exercise)
        if mark is None:
            return
        marks.append(mark)
        print()
        page.show(*exercise.arithmetic)
        to_read = sys.stdin.isatty() and n < len(questions)
        if to_read and _read_line("Enter goes on. ") is None:
            return


def _ask(page: "Page", exercise: "Exercise") -> Mark | None:
    """Ask a question; None if the user quits. A terminal allows two tries, a pipe allows one."""
    page.show(exercise.question, exercise.given_table)
    tries: tuple[Mark, ...] = ("right", "right at the second try")
    for mark in tries if sys.stdin.isatty() else tries[:1]:
        if mark != tries[0]:
            page.say(f"Hint: {exercise.hint}")
        verdict = _answer(page, exercise)
        if verdict is None:
            return None
        page.say(verdict.remark, bold=verdict.right)
        if verdict.right:
            return mark
    page.say(f"The answer: {exercise.answer.solution}", bold=True)
    return "missed"


def _answer(page: "Page", exercise: "Exercise") -> "Verdict | None":
    """Judge the next answer; an empty answer gets no remark. None if the user quits."""
    from cutaway.features.practice import Verdict

    while (text := _read_line("> ")) is not None:
        if text == "?" and sys.stdin.isatty():
            page.show(_HELP)
            continue
        try:
            return exercise.answer.judge(text) if text else Verdict(False, "")
        except InputError as error:
            sentence = f"That cannot be read: {error}."
            if not sys.stdin.isatty():
                return Verdict(False, sentence)
            page.say(sentence)
    return None


def _read_line(prompt: str) -> str | None:
    """Read a line; None if the user quits. A line from a pipe is echoed as if it were typed."""
    try:
        text = input(prompt).strip()
    except EOFError:
        print()
        return None
    if not sys.stdin.isatty():
        print(text)
    return None if text.casefold() in ("q", "quit") else text


def _summary(marks: Sequence[Mark], count: int) -> str:
    kinds = [mark for mark in get_args(Mark) if mark in marks]
    parts = [f"{marks.count(mark)} {mark}" for mark in kinds]
    parts += [f"{count - len(marks)} not answered"] if len(marks) < count else []
    return f"Of {count}: {', '.join(parts)}."


# -- paragraphs and tables, in the width and the characters of standard output ---------------------


_WIDEST, _NARROWEST, _LONGEST_BAR = 80, 20, 24


class Page:
    """The terminal, where blocks are shown one below the other."""

    def __init__(self) -> None:
        self._width = max(min(shutil.get_terminal_size().columns, _WIDEST), _NARROWEST)
        self._style = Style.from_stream(sys.stdout)

    def say(self, text: str, *, bold: bool = False) -> None:
        """Print a paragraph."""
        look = BOLD if bold and self._style.colour else PLAIN
        for line in wrap(self._style.text(text), self._width, break_on_hyphens=False):
            print(self._style.render([(line, look)], self._width))

    def show(self, *blocks: "Block") -> None:
        """Print the blocks, an empty line above and below each."""
        for block in blocks:
            if isinstance(block, str):
                self.say(block)
            else:
                print(*self._lines(block), sep="\n")
            print()

    def _lines(self, table: "Table") -> list[str]:
        grid = [list(map(self._style.text, cells)) for cells in (table.head, *table.rows)]
        widths = [max(map(width, column)) for column in zip(*grid, strict=True)]
        figures = [name not in ("", "token") and n > 0 for n, name in enumerate(table.head)]
        lines = [
            "  ".join(fit(c, w, right=f) for c, w, f in zip(cells, widths, figures, strict=True))
            for cells in grid
        ]
        room = max(min(self._width - sum(widths) - 2 * len(widths) - 2, _LONGEST_BAR), 0)
        bars = [self._style.bar(share, room) for share in table.bars]
        bars = ["", *bars, *[""] * (len(lines) - len(bars) - 1)]
        return [f"  {line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]
