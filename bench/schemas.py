"""Schemas of the real world: is every text generated under a schema valid, and what is the cost?

    python bench/schemas.py [-m MODEL] [--count 1000] [--seed 0] [--max-tokens 192]
        [--write docs/structured.md]

A seeded sample of the JSON schemas that three packages of PyPI carry: cfn-lint (resources of AWS),
kubernetes-validate (objects of Kubernetes) and check-jsonschema (files of build services). A text
is drawn under each at temperature 0.7, every second one as compact JSON, and validated by
`jsonschema`. Then the masks of each text are computed again, and timed. Speeds are of one text at a
time, both ways in turns. --write puts the figures between <!-- schemas:begin --> and
<!-- schemas:end -->; the last line is one JSON document.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import jsonschema
import numpy as np

from cutaway import LLM, Completion
from cutaway.engine.constraint.params import GrammarConstraint
from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar import Grammar, json_schema
from cutaway.text.grammar.compiler import GrammarCompiler
from script import check_page, grid, parser_of, publish

PACKAGES = ("cfn-lint==1.58.0", "kubernetes-validate==1.37.0", "check-jsonschema==0.39.0")
FOLDERS = (
    "cfnlint/data/schemas/resources",
    "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict",
    "check_jsonschema/builtin_schemas/vendor",
)
SHARED = "/api/_definitions.json#/$defs/"  # definitions in another file of Kubernetes
LIST = {
    "type": "array", "minItems": 500, "items": {
        "type": "object", "required": ["name", "coast", "population", "harbour"],
        "additionalProperties": False, "properties": {
            "name": {"type": "string", "maxLength": 12}, "coast": {"enum": ["north", "south"]},
            "population": {"type": "integer"}, "harbour": {"type": "boolean"},
        },
    },
}  # fmt: skip


# -- schemas ---------------------------------------------------------------------------------------


def collected() -> list[tuple[str, Any]]:
    """Collect (name, schema) of all schemas, in the order of their names."""
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        subprocess.run([*pip, *PACKAGES], check=True)
        paths = sorted(p for name in FOLDERS for p in Path(folder, name).glob("*.json"))
        return [(p.stem, _bundled(p)) for p in paths if p.stem not in ("_definitions", "all")]


def _bundled(path: Path) -> Any:
    """The schema of a file, with the definitions that it has in other files."""
    text = path.read_text("utf-8")
    schema = json.loads(text.replace(SHARED, "#/$defs/"))
    if SHARED not in text:
        return schema
    shared = json.loads(path.with_name("_definitions.json").read_text("utf-8"))["$defs"]
    found: dict[str, Any] = {}
    names = [*_names(schema)]
    while names:
        if (name := names.pop()) not in found:
            found[name] = json.loads(json.dumps(shared[name]).replace(SHARED, "#/$defs/"))
            names += _names(found[name])
    schema.pop("$id", None)
    return {**schema, "$defs": {**schema.get("$defs", {}), **found}}


def _names(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and str(value.get("$ref", "")).startswith("#/$defs/"):
        yield value["$ref"].removeprefix("#/$defs/")
    for one in inner:
        yield from _names(one)


# -- texts -----------------------------------------------------------------------------------------


def outcome(schema: Any, result: Completion | CutawayError) -> str:
    """Name the outcome of a schema: its text is valid, invalid or cut, or the schema is refused."""
    if isinstance(result, InputError):
        return "refused"
    if isinstance(result, CutawayError):
        return "failed"
    if result.finish_reason in ("max_tokens", "context_full"):
        return "cut"
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind(schema).validate(json.loads(result.text))
    except (jsonschema.ValidationError, ValueError):
        return "invalid"
    except Exception:  # its regular expressions are not Python's, or a $ref leads nowhere
        return "not to be validated"
    return "valid"


REASONS = {
    "nknown": "a format that is unknown", "look-around": "look-around in a pattern",
    "pattern": "another pattern", "Unicode property": "another pattern",
    "$ref": "a $ref into another file", "Resource": "a $ref into another file",
    "Unable to determine": "patterns and lengths that are too many to decide",
}  # fmt: skip


def reason(error: CutawayError | str) -> str:
    """The reason why a schema is refused, without details of this schema."""
    said = str(error)
    return next((why for word, why in REASONS.items() if word in said), said[:60])


def gone_through(
    compiler: GrammarCompiler, grammar: Grammar, ids: Sequence[int], ends: Collection[int]
) -> tuple[list[float], int]:
    """Compute a text's masks; return microseconds of each, and the number of forced tokens."""
    matcher, forced = compiler.matcher(grammar), 0
    times: list[float] = []
    for token_id in ids:
        start = perf_counter()
        mask = matcher.mask()
        times.append((perf_counter() - start) * 1e6)
        forced += int(np.bitwise_count(mask).sum()) == 1
        if token_id in ends:
            break
        matcher.accept(token_id)
    return times, forced


def written(llm: LLM, args: Namespace) -> dict[str, Any]:
    """Generate all texts; return counts of outcomes, and the cost of compiling and of masks."""
    every = collected()
    sample = Random(args.seed).sample(every, min(args.count, len(every)))
    compiler, counts, refused = llm.model.grammars, Counter[str](), Counter[str]()
    compiler.prepare()
    compiles: list[float] = []
    masks: list[float] = []
    odd: list[list[str]] = []
    asked: list[tuple[str, dict[str, Any]]] = []
    forced = 0
    for i, (name, schema) in enumerate(sample):
        options = {"json_schema": schema, "json_compact": bool(i % 2), "seed": args.seed + i}
        asked.append((f"{name}, an example in JSON:\n", options))
    for i, result in llm.generate_each(asked, max_tokens=args.max_tokens, temperature=0.7):
        name, schema = sample[i]
        assert not isinstance(result, list)  # of one sample each
        found = outcome(schema, result)
        counts[found] += 1
        if isinstance(result, InputError):
            refused[reason(result)] += 1
            continue
        if isinstance(result, CutawayError):
            odd.append([name, str(result)])
            continue
        if found == "invalid":
            odd.append([name, result.text])
        grammar, fresh = Grammar("json_schema", json_schema(schema), bool(i % 2)), _fresh(compiler)
        start = perf_counter()
        fresh.compile(grammar)
        compiles.append((perf_counter() - start) * 1e3)
        times, alone = gone_through(fresh, grammar, result.token_ids, llm.tokenizer.end_ids)
        masks, forced = masks + times, forced + alone
    return {
        "of": len(every), "counts": counts, "refused": refused.most_common(), "odd": odd[:20],
        "masks": len(masks), "forced": forced / len(masks),
        "mask_us": [mean(masks), *_percentiles(masks)], "compile_ms": _percentiles(compiles),
    }  # fmt: skip


def _fresh(compiler: GrammarCompiler) -> GrammarCompiler:
    """Make a compiler with the same tables, and without cached grammars."""
    fresh = GrammarCompiler(compiler._words)
    fresh.__dict__ |= {"tokenizer": compiler.tokenizer, "_quoted": compiler._quoted}
    return fresh


def _percentiles(values: list[float]) -> list[float]:
    cuts = quantiles(values, n=100)
    return [cuts[49], cuts[98]]


# -- speed -----------------------------------------------------------------------------------------


@contextmanager
def no_forced() -> Iterator[None]:
    """Give each token a step of its own, as if grammars had only masks and no forced tokens."""
    before = GrammarConstraint.find_forced_tokens
    GrammarConstraint.find_forced_tokens = lambda self: ()  # type: ignore[method-assign]  # noqa: ARG005
    try:
        yield
    finally:
        GrammarConstraint.find_forced_tokens = before  # type: ignore[method-assign]


def speed(llm: LLM, tokens: int, **options: Any) -> float:
    """Measure tokens a second of one text after its first token."""
    run = {"seed": 1, "max_tokens": tokens, "temperature": 0.7, **options}
    done: Completion = llm.generate("Villages by the sea:\n", **run)
    assert len(done.token_ids) == tokens, done.finish_reason
    rate = done.timing.decode_tokens_per_s
    assert rate is not None
    return rate


def ratios(llm: LLM, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Measure each comparison's ratios, one a round."""
    made: dict[str, list[float]] = {"schema": [], "schema_plain": [], "forced": []}
    for _ in range(rounds):
        free = speed(llm, tokens, ignore_eos=True)
        made["schema"].append(speed(llm, tokens, json_schema=LIST) / free)
        with no_forced():
            made["schema_plain"].append(speed(llm, tokens, json_schema=LIST) / free)
        forced = speed(llm, tokens, json_schema=LIST, json_compact=True)
        with no_forced():
            bare = speed(llm, tokens, json_schema=LIST, json_compact=True)
        made["forced"].append(forced / bare)
    return made


# -- report ----------------------------------------------------------------------------------------


def markdown(found: dict[str, Any], speeds: dict[str, list[float]], args: Namespace) -> str:
    counts, us, ms = found["counts"], found["mask_us"], found["compile_ms"]
    reasons = "; ".join(f"{why} {count}" for why, count in found["refused"])
    of = {name: f"{median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for name, r in speeds.items()}
    rows = [
        ("schemas, a sample of", f"{sum(counts.values())} of {found['of']}"),
        ("valid", counts["valid"]),
        ("**invalid**", f"**{counts['invalid']}**"),
        (f"cut after {args.max_tokens} tokens", counts["cut"]),
        ("whole, but `jsonschema` cannot read the schema", counts["not to be validated"]),
        ("ended with an error", counts["failed"]),
        ("refused by name", f"{counts['refused']}: {reasons}"),
        ("a mask", f"{us[0]:.0f} µs; p50 {us[1]:.0f}, p99 {us[2]:.0f}, of {found['masks']}"),
        ("tokens that the grammar leaves no choice in", f"{found['forced']:.1%}"),
        ("to compile a schema", f"p50 {ms[0]:.1f} ms, p99 {ms[1]:.0f} ms"),
        ("tokens a second under a schema, of those of free text", of["schema"]),
        ("the same without forced tokens", of["schema_plain"]),
        ("compact JSON with forced tokens, of the same without", of["forced"]),
    ]
    return grid(("", ""), rows)


def main() -> None:
    parser = parser_of(__doc__, write="docs/structured.md")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=200, help="of a text whose speed is measured")
    args = parser.parse_args()
    check_page(args.write, "schemas")
    llm = LLM(args.model, max_num_seqs=16)
    speed(llm, 8)  # a first run, to warm up
    speeds = ratios(llm, args.rounds, args.tokens)
    found = written(llm, args)
    document = {"model": llm.name, **found, "speeds": speeds}
    publish(markdown(found, speeds, args), document, args.write, "schemas")


if __name__ == "__main__":
    main()
