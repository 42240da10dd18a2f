"""Questions with what a right answer holds: of a JSONL, of promptfoo, of a task of lm-eval."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.cli.namespace import read_file
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.measure.paired import Question


def read_questions(path: str, limit: int | None = None) -> "list[Question]":
    """Of a file, or of a task of lm-eval; InputError where it cannot be read."""
    if limit is not None and limit < 1:
        raise InputError(f"--limit must be 1 or more, not {limit}")
    name = path.removeprefix("lm-eval:")
    return (_of_lm_eval(name, limit) if name != path else _of_file(path))[:limit]


def _of_file(path: str) -> "list[Question]":
    data = read_file(path)
    if path.endswith((".yaml", ".yml")):
        return _of_promptfoo(path, _yaml(path, data))
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and "tests" in whole:
        return _of_promptfoo(path, whole)
    return [_of_line(f"{path}, line {n}", line) for n, line in enumerate(lines, 1)]


def _of_line(where: str, line: str) -> "Question":
    from cutaway.features.measure.paired import RULES

    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: this is no JSON") from None
    if not (isinstance(given, dict) and isinstance(given.get("prompt"), str)):
        raise InputError(f"{where}: it must be an object with a prompt")
    return _question(where, given["prompt"], [(r, given[r]) for r in RULES if r in given])


def _question(where: str, prompt: str, expect: list[tuple[Any, Any]]) -> "Question":
    import re

    from cutaway.features.measure.paired import RULES, Question

    if not expect:
        raise InputError(f"{where}: say what the answer must hold: {', '.join(RULES)}")
    for rule, value in expect:
        if not (isinstance(rule, str) and rule in RULES and isinstance(value, str)):
            raise InputError(f"{where}: an assertion is one of {', '.join(RULES)}, with a text")
        try:
            re.compile(value if rule == "regex" else "")
        except (re.error, RecursionError, OverflowError) as error:
            raise InputError(f"{where}: regex: {error}") from None
    return Question(prompt, tuple(expect))


def _of_promptfoo(path: str, given: Any) -> "list[Question]":
    tests, prompts = (given.get(name) for name in ("tests", "prompts"))
    if not (isinstance(tests, list) and isinstance(prompts, list) and prompts):
        raise InputError(f"{path}: a file of promptfoo has lists of prompts and of tests")
    found = []
    for n, test in enumerate(tests, 1):
        where, prompt = f"{path}, test {n}", str(prompts[0])
        if not isinstance(test, dict):
            raise InputError(f"{where}: it must be an object with vars and assert")
        values, asserted = test.get("vars") or {}, test.get("assert") or []
        if not (isinstance(values, dict) and isinstance(asserted, list)):
            raise InputError(f"{where}: vars must be an object, and assert a list")
        for name, value in values.items():
            prompt = prompt.replace(f"{{{{{name}}}}}", str(value))
            prompt = prompt.replace(f"{{{{ {name} }}}}", str(value))
        rules = (each if isinstance(each, dict) else {} for each in asserted)
        expect = [(each.get("type"), each.get("value")) for each in rules]
        found.append(_question(where, prompt, expect))
    return found


def _yaml(path: str, data: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(f"{path}: YAML needs PyYAML: pip install pyyaml, or give JSON") from None
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: this is no YAML: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: a file of promptfoo has lists of prompts and of tests")
    return found


def _of_lm_eval(name: str, limit: int | None) -> "list[Question]":
    """Of a task's documents: prompts with its examples, and its own filters and first metric."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise InputError("lm-eval: it is not installed: pip install 'cutaway[lm-eval]'") from None
    file = Path(name)
    own = file.suffix in (".yaml", ".yml")
    manager = TaskManager(include_path=str(file.parent) if own else None, include_defaults=not own)
    try:
        [task] = manager.load([str(file.stem) if own else name])["tasks"].values()
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"lm-eval:{name}: it is not one task that can be read: {error}") from error
    if task.OUTPUT_TYPE != "generate_until":
        raise InputError(f"lm-eval:{name}: {task.OUTPUT_TYPE} writes nothing; see docs/score.md")
    return [_of_document(task, doc) for doc in islice(task.eval_docs, limit)]


def _of_document(task: Any, doc: Mapping[str, Any]) -> "Question":
    from cutaway.features.measure.paired import Question

    shots = task.config.num_fewshot or 0
    asked = task.construct_requests(doc, task.fewshot_context(doc, num_fewshot=shots))
    request = asked[0] if isinstance(asked, list) else asked
    prompt, settings = request.args
    until = settings.get("until") or []
    options = {"stop": [until] if isinstance(until, str) else list(until)}
    if tokens := settings.get("max_gen_toks"):
        options["max_tokens"] = tokens

    def judge(text: str) -> float:
        request.resps, request.filtered_resps = [text], {}
        for each in task._filters:
            each.apply([request])
        answer = next(iter(request.filtered_resps.values()), text)
        return float(next(iter(task.process_results(doc, [answer]).values())))

    return Question(prompt, (), judge, options)
