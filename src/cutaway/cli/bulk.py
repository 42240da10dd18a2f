"""``cutaway generate --input``: a file of requests, and a record with the result of each."""

import json
import re
from argparse import Namespace
from codecs import BOM_UTF8
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import Bar, say, say_error
from cutaway.base.strict_json import parse
from cutaway.cli import console
from cutaway.cli.batch_files import Lines, Records, open_input
from cutaway.cli.reports import Totals, document
from cutaway.errors import CutawayError, InputError
from cutaway.files import hub

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.api.text_writer import Result, Results

_LOADED = ("backend", "context", "quantize", "kv", "lora")
"""Options of the model that a text depends on."""


def run(args: Namespace, options: dict[str, Any]) -> int:
    """Process every line without a record; 0, 1 if lines failed, 130 after Ctrl-C."""
    model = str(getattr(args, "model", hub.DEFAULT_MODEL))
    loaded = {name: getattr(args, name) for name in _LOADED if hasattr(args, name)}
    salt = json.dumps({"model": model, "options": options, **loaded}, sort_keys=True)
    with open_input(args.input) as file:
        lines = Lines(file, salt)
        with Records(args.output, lines) as records:
            if lines.done and not args.quiet:
                say(f"{lines.done} of {lines.count} lines have their record already")
            if lines.done < lines.count:
                _answer(args, options, lines, records)
    place, again = "", ""
    if args.output != "-":
        place, again = f" in {args.output}", "; run the same command again to resume"
    if lines.done < lines.count:
        say(f"interrupted: {lines.done} of {lines.count} lines are done{place}{again}")
        return 130
    if lines.failed:
        reason = f"{lines.failed} of {lines.count} lines failed; their records{place} say why"
        say_error(reason)
    return 1 if lines.failed else 0


def _answer(args: Namespace, options: dict[str, Any], lines: Lines, records: Records) -> None:
    """Write the record of each line as it finishes, until all have one, or Ctrl-C."""
    llm = console.load(args)
    started, before, totals = perf_counter(), lines.done, Totals()
    heads: dict[int, dict[str, Any]] = {}
    with llm.generate_each(_requests(llm, lines, heads), **options) as results:
        with console.stoppable(results), _bar(results, lines, show=not args.quiet) as bar:
            for index, result in results:
                records.write(heads.pop(index) | _answers(result, totals, args))
                bar.update(lines.done)
        seconds = perf_counter() - started
        if not args.quiet:
            done = lines.done - before
            parts = [f"{done} {'line' if done == 1 else 'lines'} in {seconds:.1f} s",
                     f"{results.tokens / seconds:.1f} tokens/s"]  # fmt: skip
            say(totals.line(parts, args.price))


def _bar(results: "Results", lines: Lines, *, show: bool) -> Bar:
    """A bar that is redrawn after every step, and not only when a line finishes."""

    def figures(done: int, total: int, seconds: float) -> str:
        return f"{done} of {total} lines, {results.tokens / seconds:.0f} tokens/s"

    bar = Bar("generating", lines.count, show=show, figures=figures)
    bar.update(lines.done)
    results.on_step = lambda: bar.update(lines.done)
    return bar


def _requests(llm: "LLM", lines: Lines, heads: dict[int, dict[str, Any]]) -> Iterator[Any]:
    """The requests of the lines without a record; ``heads`` gets the beginning of each record."""
    for index, number in enumerate(lines.left()):
        head = heads[index] = lines.head(number)
        try:
            request: Any = _request(llm, lines.read(number), head)
        except CutawayError as error:
            request = error
        yield request


def _answers(result: "Result", totals: Totals, args: Namespace) -> dict[str, Any]:
    """The rest of a record, after its head."""
    if isinstance(result, CutawayError):
        return {"error": str(result)}
    samples = result if isinstance(result, list) else [result]
    documents = [document(sample, args.price) for sample in samples]
    for sample in samples:
        totals.add(sample)
    return {"samples": documents} if isinstance(result, list) else documents[0]


def _request(llm: "LLM", line: bytes, head: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The prompt and the options of a line; its id becomes part of the head."""
    from cutaway.requests.tools import ToolUse
    from cutaway.text.thinking import ThinkingWish

    given = parse(line.removeprefix(BOM_UTF8), "this line")
    if isinstance(given, str):
        return given, {}
    if isinstance(given, dict) and "id" in given:
        head["id"] = given.pop("id")
    if not isinstance(given, dict) or ("prompt" in given) == ("messages" in given):
        raise InputError('a line must be a string, or an object with "prompt" or "messages"')
    if "trace" in given:  # a killed run would leave a part that the next must not overwrite
        raise InputError("trace: a line of a batch file cannot be traced: leave it out")
    if isinstance(bias := given.get("logit_bias"), dict):  # JSON has no other keys than strings
        given["logit_bias"] = {_token_id(name): by for name, by in bias.items()}
    if "prompt" in given:
        return given.pop("prompt"), given
    if not isinstance(messages := given.pop("messages"), list):
        raise InputError("messages must be a list")
    goes_on = given.pop("continue_final_message", False)
    names = ("think", "think_budget", "chat_template_kwargs")
    think, budget, variables = (given.pop(name, None) for name in names)
    use = ToolUse(llm.model, wish=ThinkingWish(think, budget, variables or {}))
    ids = llm.chat_ids(messages, continue_final_message=goes_on, **use.variables)
    use.behind(ids, messages[-1] if goes_on else None)
    return ids, use.options(given)


def _token_id(name: str) -> int | str:
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,18}", name) else name
