"""``cutaway oracle``: compare another engine's answers with the model, token by token."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.features.evidence.oracle import EngineAnswer, Oracle

EPILOG = """
examples:
  cutaway oracle told.jsonl -m model.gguf --temperature 0.8 --top-p 0.9
  cutaway oracle http://localhost:8000 -m path/to/folder --prompt "The sea" --temperature 0.7
  cutaway oracle http://localhost:8080 -m model.gguf --echo story.txt
  cutaway oracle transformers:path/to/folder -m path/to/folder --chat --prompt "Why?"

SOURCE is a file of answers, a server, or transformers in this process. A line of the file is
{"prompt_token_ids": […], "token_ids": […], "logprobs": […]}; instead of the prompt's ids it may
have "messages" or "prompt". A server (vLLM, SGLang, llama-server, Ollama, or OpenAI's form) is
asked for each --prompt. The model reads what was written, at the rate of a prompt, and says of
each token:

  raw        its log-probability under the model's own logits
  tempered   after penalties and temperature
  final      after the whole chain; mass: the share of probability that truncation left
  rank       1 is the likeliest; delta: what was told, minus the nearest of these three

Give the settings as the other engine had them; without them temperature and top_p are 1. Where
the figures do not fit, other accounts are tried: another temperature, order of the chain or
template, a changed token, and the weights of --others. The importance error is the mean
|exp(delta) - 1|. Exit code 1 where the verdict is not the same model and settings. A server's key
is read from the environment variable CUTAWAY_API_KEY.
"""
COMMON = "--model --prompt --max-tokens --temperature --top-p --others --rows --json"
_WORST = 8


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway oracle``."""
    parser.add_argument("source", metavar="SOURCE", help="FILE, http://… or transformers:PATH")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT",
        help="what a server or transformers is asked; repeat for more",
    )  # fmt: skip
    parser.add_argument(
        "--chat", action="store_true", help="each prompt is a user's message in a conversation"
    )
    parser.add_argument("--echo", metavar="FILE", help="ask a server how likely this text is")
    arguments.add_number(parser, "--max-tokens", 64, "tokens of an answer")
    parser.add_argument("--server-model", metavar="NAME", default="", help="the model's name there")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
        help="what transformers computes in; default float32",
    )  # fmt: skip
    parser.add_argument(
        "--tell", choices=("final", "raw"), default="final",
        help="which log-probabilities transformers tells; default final",
    )  # fmt: skip
    parser.add_argument(
        "--others", metavar="F,F", type=lambda text: text.split(","), default=[],
        help="formats of --quantize, or files: weights that are tried where nothing else fits",
    )  # fmt: skip
    parser.add_argument("--rows", metavar="FILE", help="write whole rows of logits, as safetensors")
    parser.add_argument("--save", metavar="FILE", help="write what was told, as a SOURCE")
    arguments.add_loading_arguments(parser)
    arguments.add_groups(parser, "sampling")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Get the answers, compare, print, and return 0, or 1 where the verdict is not the same."""
    from cutaway.features.evidence.oracle import oracle, write_answers

    request_args = {k: v for k, v in vars(args).items() if k not in ("max_tokens", "echo")}
    settings = namespace.request_options(Namespace(**request_args))
    settings = {k: v for k, v in settings.items() if k in SamplingParams.__dataclass_fields__}
    source = _source(args)
    llm = console.load(Namespace(**{k: v for k, v in vars(args).items() if k != "max_tokens"}))
    answers = source(llm, settings)
    if args.save:
        write_answers(args.save, answers)
    other_weights = {name: partial(_other, args, name) for name in args.others}
    with console.progress(show=not args.quiet, after=1) as progress:
        result = oracle(
            llm, answers, other_weights=other_weights, rows=args.rows, progress=progress, **settings
        )
    print_report(args, result.to_dict, lambda: _report(result, llm))
    return 0 if result.verdict == ("same",) else 1


Source = Callable[["LLM", dict[str, Any]], "list[EngineAnswer]"]


def _source(args: Namespace) -> Source:
    """Return the function that gets the answers; InputError for arguments that conflict."""
    live = args.source.startswith(("http://", "https://", "transformers:"))
    if not live and (args.prompt or args.echo):
        raise InputError("--prompt and --echo are for a server: a file has its prompts")
    if live and not (args.prompt or args.echo):
        raise InputError("--prompt: say what to ask (or, of a server, --echo FILE)")
    if not live:
        return partial(_from_file, args.source)
    if args.source.startswith("transformers:"):
        if args.echo:
            raise InputError("--echo is for a server; give --prompt")
        return partial(_from_transformers, args)
    return partial(_from_server, args)


def _from_file(path: str, llm: "LLM", _: dict[str, Any]) -> "list[EngineAnswer]":
    from cutaway.features.evidence.oracle import read_answers

    return read_answers(path, llm)


def _from_transformers(
    args: Namespace, llm: "LLM", settings: dict[str, Any]
) -> "list[EngineAnswer]":
    from cutaway.features.evidence.oracle.engines import ask_transformers

    sampler_settings = {k: v for k, v in settings.items() if k != "seed"}
    path = args.source.removeprefix("transformers:")
    prompts = [llm.chat_ids(p) if args.chat else llm.tokenize(p) for p in _prompts(args)]
    return ask_transformers(
        path, prompts, dtype=args.dtype, tell=args.tell, max_tokens=args.max_tokens,
        seed=settings.get("seed", 0), **sampler_settings,
    )  # fmt: skip


def _from_server(args: Namespace, llm: "LLM", settings: dict[str, Any]) -> "list[EngineAnswer]":
    from cutaway.features.evidence.oracle.engines import ask, ask_echo
    from cutaway.rerun.asking import Server

    server = Server(args.source, os.environ.get("CUTAWAY_API_KEY", ""))
    if args.echo:
        ids = llm.tokenize(namespace.read_file(args.echo, "--echo"))
        return [ask_echo(server, llm, ids, args.server_model)]
    prompts = [p if args.chat else llm.tokenize(p) for p in _prompts(args)]
    neutral = {"temperature": 1.0, "top_p": 1.0}
    return ask(
        server, llm, prompts, model=args.server_model, max_tokens=args.max_tokens,
        **(neutral | settings),
    )  # fmt: skip


def _prompts(args: Namespace) -> list[Any]:
    if not args.chat:
        return [*args.prompt]
    return [[{"role": "user", "content": text}] for text in args.prompt]


def _other(args: Namespace, name: str) -> "LLM":
    """Open the model with other weights: those of a file, or its own in another format."""
    from cutaway.api.llm import LLM

    options = namespace.model_options(args)
    is_file = Path(name).exists() or name.endswith(".gguf")
    changed = {"model": name} if is_file else {"quantize": name}
    return LLM(**(options | changed), progress=False)


def _report(result: "Oracle", llm: "LLM") -> Iterable[str]:
    from cutaway.features.evidence.oracle import distances, worst

    kind_distances = distances(result)
    rows = [("", "mean |delta|", "median", "largest", "removed", "importance error")]
    rows += [
        (
            kind, f"{d.mean_abs:12.5f}", f"{d.median_abs:8.5f}", f"{d.max_abs:8.4f}",
            f"{d.removed:7d}", f"{d.importance_error:16.3g}",
        )
        for kind, d in kind_distances.items()
    ]  # fmt: skip
    like = "" if len(result.fit.same_kinds) == 1 else f" (like {', '.join(result.fit.same_kinds)})"
    tokens = sum(map(len, result.fit.readings))
    yield f"verdict: {', '.join(result.verdict)}"
    yield f"  {result.sentence()}"
    for finding in result.findings:
        yield from (f"    {name}: {_figure(value)}" for name, value in finding.evidence.items())
    yield ""
    yield f"{tokens} tokens in {len(result.fit.answers)} answers; it tells {result.kind}{like}"
    yield from table(rows)
    if result.log_mass:
        yield f"truncation leaves exp({result.log_mass:.4f}) of the mass on average"
    yield from ("", "the tokens that are farthest off:")
    head = ("answer", "token", "", "told", "raw", "tempered", "final", "mass", "rank", "delta")
    lines = [
        (
            f"{n:6d}", f"{at:5d}", repr(llm.tokenizer.token_name(reading.token_id)),
            f"{logprob:8.4f}", f"{reading.raw:8.4f}", f"{reading.tempered:8.4f}",
            "removed" if reading.final is None else f"{reading.final:8.4f}", f"{reading.mass:5.3f}",
            f"{reading.rank:4d}", f"{delta:+.4f}",
        )
        for n, at, logprob, reading, delta in worst(result, _WORST)
    ]  # fmt: skip
    yield from table([head, *lines])


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(
            ", ".join(f"{k} {_figure(v)}" for k, v in token.items()) for token in value
        )
    return f"{value:.4g}" if isinstance(value, float) else str(value)
