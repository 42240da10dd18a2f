"""``cutaway audit``: whether texts were drawn by the luck of a seed."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.features.evidence.audit import Audit


COMMON = "-m --seed --temperature --top-p --json"
EPILOG = """
examples:
  cutaway audit texts.jsonl -m model.gguf --seed 7 --temperature 0.7
  echo '{"prompt": "The sky is", "text": " blue.", "seed": 7}' | cutaway audit -
  cutaway generate "The sky is" --seed 7 --json | cutaway audit -

FILE has one JSON object a line: "prompt" or "prompt_token_ids"; "token_ids", or else "text", which
is then encoded; "seed", or else --seed. What 'cutaway generate --json' prints is such an object.

For each text it says how many of its tokens are those that the seed's luck draws from this model
under these settings, how many would be by chance, and the false-alarm rate: how often a text that
was written without this luck has as many. Exit code 0 where every rate is below one in a million,
else 1. docs/luck.md specifies the luck, so that other engines can draw by it.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway audit``."""
    parser.add_argument("file", metavar="FILE", help="texts; - reads standard input")
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Audit, print, and return 0, or 1 where a text does not show the luck."""
    settings = namespace.request_options(args)
    texts = _texts(args.file, settings.pop("seed", None))
    llm = console.load(args)
    from cutaway.features.evidence.audit import ALARM, audit

    audits = [audit(llm, prompt, text, seed, **settings) for prompt, text, seed in texts]
    document = [text_audit.to_dict() for text_audit in audits]
    print_report(args, lambda: document, lambda: _report(audits))
    return 0 if all(text_audit.false_alarm < ALARM for text_audit in audits) else 1


def _report(audits: list["Audit"]) -> list[str]:
    rows = [("TEXT", "DRAWN BY IT", "BY CHANCE", "FALSE ALARM", "")]
    for number, audit in enumerate(audits, 1):
        matches = f"{audit.matches} of {len(audit.tokens)}"
        rows.append(
            (
                f"{number}",
                matches,
                f"{audit.by_chance:.1f}",
                f"{audit.false_alarm:.1e}",
                audit.verdict,
            )
        )
    return table(rows)


def _texts(path: str, seed: int | None) -> list[tuple[Any, Any, int]]:
    """Read (prompt, text, seed) from each JSON object, which may span several lines."""
    data = namespace.read_file(path)
    documents = [*_objects(path, data)]
    if not documents:
        raise InputError(f"{path}: there are no texts")
    return [_text(f"{path}, text {n}", document, seed) for n, document in enumerate(documents, 1)]


def _objects(path: str, data: str) -> Any:
    decoder, at = json.JSONDecoder(), 0
    while (at := _skip_space(data, at)) < len(data):
        try:
            document, at = decoder.raw_decode(data, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: this is no JSON: {error}") from None
        yield document


def _skip_space(data: str, at: int) -> int:
    while at < len(data) and data[at].isspace():
        at += 1
    return at


def _text(place: str, document: Any, seed: int | None) -> tuple[Any, Any, int]:
    if not isinstance(document, dict):
        raise InputError(f"{place}: it must be a JSON object")
    prompt = document.get("prompt", document.get("prompt_token_ids"))
    text = document.get("token_ids", document.get("text"))
    text_seed = document.get("seed", seed)
    for name, value in (("prompt", prompt), ("text", text)):
        if not isinstance(value, str | list):
            raise InputError(f"{place}: {name} must be a text or a list of token ids")
    if type(text_seed) is not int:
        raise InputError(f"{place}: seed must be a whole number, here or as --seed")
    return prompt, text, text_seed
