"""``cutaway ab``: two ways to answer the same questions, with the same luck.

Reads questions and the rules for right answers from JSONL, a promptfoo file or an lm-eval task.
"""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.cli.options import arguments, namespace
from cutaway.cli.options.namespace import read_file
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.measure.paired import Paired, Question


COMMON = "-m --b --samples --limit --prompt --max-tokens --temperature --seed --json"
EPILOG = """
examples:
  cutaway ab questions.jsonl --b temperature=0.3 --max-tokens 24
  cutaway ab questions.jsonl -m model-q8_0.gguf --b model=model-q4_0.gguf
  cutaway ab questions.jsonl --prompt "Q: {prompt} A:" --b "prompt=Question: {prompt} Answer:"
  cutaway ab promptfooconfig.yaml --b top_p=0.5 --samples 8
  cutaway ab lm-eval:gsm8k --b quantize=q4_0 --limit 50

The flags say what A is, and each --b what is other in B: model, quantize, kv, prompt, or an option
of the API. FILE has one JSON object a line: "prompt", and what the answer must hold: "contains",
"icontains", "equals" or "regex". A file of promptfoo with "tests" is read, too: its vars fill the
first of its prompts, and assertions of those four kinds count; others are refused. Of a task of
lm-eval that writes (generate_until), by name or as a YAML file, the few-shot prompts, stop strings,
filters and first metric are taken.

Each question is answered with the same seeds both ways. Two ways that differ little then draw
mostly the same texts, so that fewer samples tell them apart: SAVED says how many times as many
independent ones would be needed. The interval holds 95 % over questions.
"""
_LOADING = ("model", "quantize", "kv")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway ab``."""
    parser.add_argument("file", metavar="FILE", help="the questions; or lm-eval:TASK")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N questions")
    parser.add_argument("--b", type=_change, action="append", default=[], metavar="NAME=VALUE",
                        help="what is other in B; repeat for more")  # fmt: skip
    parser.add_argument("--samples", type=int, default=4, metavar="N",
                        help="answers to each question; default 4")  # fmt: skip
    parser.add_argument("--prompt", default="{prompt}", metavar="TEXT",
                        help="what is read, with {prompt} where the question goes")  # fmt: skip
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Answer the questions both ways, print the comparison, and return 0."""
    options, changes = namespace.request_options(args), dict(args.b)
    if not changes:
        raise InputError("--b: say what is other in B, as --b temperature=0.3")
    seed, questions = options.pop("seed", 0), read_questions(args.file, args.limit)
    b_options = {
        name: value for name, value in changes.items() if name not in (*_LOADING, "prompt")
    }
    from cutaway.requests.options import parse_options

    parse_options(options | b_options)  # refused before a model is loaded
    a = b = console.load(args)
    if any(name in changes for name in _LOADING):
        loading = {name: str(changes[name]) for name in _LOADING if name in changes}
        b = console.load(Namespace(**vars(args) | loading))
    from cutaway.features.measure.paired import Way, compare_ways

    template = str(changes.get("prompt", args.prompt))
    ways = Way(a, args.prompt, options), Way(b, template, options | b_options)
    with console.progress(show=not args.quiet) as progress:
        done = compare_ways(questions, *ways, samples=args.samples, seed=seed, progress=progress)
    print_report(args, done.to_dict, lambda: _report(done, len(questions), args.samples))
    return 0


def _report(done: "Paired", questions: int, samples: int) -> list[str]:
    d = done.difference
    saved = "no pair differs" if done.saved is None else f"×{done.saved:.1f}"
    rows = [
        ("A RIGHT", "B RIGHT", "B - A", "95 %", "SAME TEXT", "SAVED"),
        (f"{done.a:.1%}", f"{done.b:.1%}", f"{d.mean:+.1%}", f"{d.low:+.1%} to {d.high:+.1%}",
         f"{done.same:.0%}", saved),
    ]  # fmt: skip
    lines = [f"{questions} questions, {samples} seeds each", *table(rows)]
    counts_by_position = Counter(
        answer.parts_at for answer in done.answers if answer.parts_at is not None
    )
    if counts_by_position:
        for at, count in sorted(counts_by_position.items()):
            lines.append(f"  {at:>4}  {'█' * min(count, 60)} {count}")
    return lines


def _change(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"write NAME=VALUE, as temperature=0.3: {text!r}")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


# -- the questions ---------------------------------------------------------------------------------


def read_questions(path: str, limit: int | None = None) -> "list[Question]":
    """Read questions from a file or a task of lm-eval; InputError where they cannot be read."""
    if limit is not None and limit < 1:
        raise InputError(f"--limit must be 1 or more, not {limit}")
    name = path.removeprefix("lm-eval:")
    return (_read_lm_eval(name, limit) if name != path else _read_questions_file(path))[:limit]


def _read_questions_file(path: str) -> "list[Question]":
    data = read_file(path)
    if path.endswith((".yaml", ".yml")):
        return _read_promptfoo(path, _yaml(path, data))
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and "tests" in whole:
        return _read_promptfoo(path, whole)
    return [_read_line(f"{path}, line {n}", line) for n, line in enumerate(lines, 1)]


def _read_line(place: str, line: str) -> "Question":
    from cutaway.features.measure.paired import RULES

    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place}: this is no JSON") from None
    if not (isinstance(document, dict) and isinstance(document.get("prompt"), str)):
        raise InputError(f"{place}: it must be an object with a prompt")
    return _question(place, document["prompt"], [(r, document[r]) for r in RULES if r in document])


def _question(place: str, prompt: str, expect: list[tuple[Any, Any]]) -> "Question":
    import re

    from cutaway.features.measure.paired import RULES, Question

    if not expect:
        raise InputError(f"{place}: say what the answer must hold: {', '.join(RULES)}")
    for rule, value in expect:
        if not (isinstance(rule, str) and rule in RULES and isinstance(value, str)):
            raise InputError(f"{place}: an assertion is one of {', '.join(RULES)}, with a text")
        try:
            re.compile(value if rule == "regex" else "")
        except (re.error, RecursionError, OverflowError) as error:
            raise InputError(f"{place}: regex: {error}") from None
    return Question(prompt, tuple(expect))


def _read_promptfoo(path: str, document: Any) -> "list[Question]":
    tests, prompts = (document.get(name) for name in ("tests", "prompts"))
    if not (isinstance(tests, list) and isinstance(prompts, list) and prompts):
        raise InputError(f"{path}: a file of promptfoo has lists of prompts and of tests")
    questions = []
    for n, test in enumerate(tests, 1):
        place, prompt = f"{path}, test {n}", str(prompts[0])
        if not isinstance(test, dict):
            raise InputError(f"{place}: it must be an object with vars and assert")
        values, asserted = test.get("vars") or {}, test.get("assert") or []
        if not (isinstance(values, dict) and isinstance(asserted, list)):
            raise InputError(f"{place}: vars must be an object, and assert a list")
        for name, value in values.items():
            prompt = prompt.replace(f"{{{{{name}}}}}", str(value))
            prompt = prompt.replace(f"{{{{ {name} }}}}", str(value))
        rules = (assertion if isinstance(assertion, dict) else {} for assertion in asserted)
        expect = [(assertion.get("type"), assertion.get("value")) for assertion in rules]
        questions.append(_question(place, prompt, expect))
    return questions


def _yaml(path: str, data: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(f"{path}: YAML needs PyYAML: pip install pyyaml, or give JSON") from None
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: this is no YAML: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: a file of promptfoo has lists of prompts and of tests")
    return document


def _read_lm_eval(name: str, limit: int | None) -> "list[Question]":
    """Read an lm-eval task: prompts with its examples, judged by its filters and first metric."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise InputError("lm-eval: it is not installed: pip install 'cutaway[lm-eval]'") from None
    file = Path(name)
    is_file = file.suffix in (".yaml", ".yml")
    manager = TaskManager(
        include_path=str(file.parent) if is_file else None, include_defaults=not is_file
    )
    try:
        [task] = manager.load([str(file.stem) if is_file else name])["tasks"].values()
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"lm-eval:{name}: it is not one task that can be read: {error}") from error
    if task.OUTPUT_TYPE != "generate_until":
        raise InputError(f"lm-eval:{name}: {task.OUTPUT_TYPE} writes nothing; see docs/score.md")
    return [_read_document(task, doc) for doc in islice(task.eval_docs, limit)]


def _read_document(task: Any, doc: Mapping[str, Any]) -> "Question":
    from cutaway.features.measure.paired import Question

    shots = task.config.num_fewshot or 0
    requests = task.construct_requests(doc, task.fewshot_context(doc, num_fewshot=shots))
    request = requests[0] if isinstance(requests, list) else requests
    prompt, settings = request.args
    until = settings.get("until") or []
    options = {"stop": [until] if isinstance(until, str) else list(until)}
    if tokens := settings.get("max_gen_toks"):
        options["max_tokens"] = tokens

    def judge(text: str) -> float:
        request.resps, request.filtered_resps = [text], {}
        for answer_filter in task._filters:
            answer_filter.apply([request])
        answer = next(iter(request.filtered_resps.values()), text)
        return float(next(iter(task.process_results(doc, [answer]).values())))

    return Question(prompt, (), judge, options)
