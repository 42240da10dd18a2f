"""``cutaway generate``: continue one prompt, or each prompt of a file.

Standard output has only the text.
"""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, reports
from cutaway.errors import InputError
from cutaway.registry import feature

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream

COMMON = "-m --max-tokens --temperature --seed --stop --json-schema --json --trace"
EPILOG = """
examples:
  cutaway generate "The sky is"
  cutaway generate "The capital of France is" --temperature 0 --max-tokens 32
  echo "Once upon a time" | cutaway generate - --seed 7 --stop "The end"
  cutaway generate "def fibonacci(n):" --json | python -m json.tool
  cutaway generate "The sky is" --price 0.15,0.60
  cutaway generate "Once upon a time" --n 3 --temperature 1
  cutaway generate "Paris is the" --suffix " of France."
  cutaway generate "The sky is" --json --logprobs 5 --prompt-logprobs 5
  cutaway generate - --speculate ngram < notes.txt
  cutaway generate "The sky is" --trace run.jsonl --track " blue"
  cutaway generate "The sky is" --seed 7 --intervention "L25.H2 x 0"
  cutaway generate "The sky is" --receipt me.pem
  cutaway generate -m 70b.gguf --offload-folder /data --kv-tokens 4096 "The sky is"
  cutaway generate --prefix book.prefix " Who is the murderer?"
  cutaway generate --input prompts.jsonl --output answers.jsonl --seed 7

The text goes to standard output, statistics to standard error. Ctrl-C stops after the current step
and keeps the text so far (exit code 130); a second Ctrl-C stops at once. --fail-if-cut makes a text
that was cut exit code 3. A text under a schema or another grammar that was cut is not whole, which
is exit code 4 by itself. A prompt that leaves no room in the model's context is refused, never
truncated.

--prefix FILE continues a text that 'cutaway cache save' has saved: the prompt follows it as if both
were one text, with the same bits, and what is saved is not computed again. Without a prompt the
saved text itself is continued.

--input FILE has one request per line: a JSON string, which is the prompt, or an object such as
  {"prompt": "The sky is", "max_tokens": 20, "seed": 7, "id": "sky"}
  {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "priority": -1}
"prompt" is a text or token ids; "messages" is rendered by the model's chat template. All options of
the Python API but "trace" can be set, and override those of the command line. Blank lines are
skipped. Lines run in one batch; a lower "priority" goes first.

--output FILE gets one record per line as it finishes: the document of --json with "line" (from 1),
"request_sha256" (of the line, the model's name, --backend, --context, --quantize, --kv and the
options of the command line) and the "id". With n above 1 it has a list "samples"; a line that
failed has an "error", and the exit code is 1. Run the same command again to resume after an
interruption, even kill -9: lines with a record are skipped. To repeat a line, delete its record. A
file with anything else in it is refused. "-" is standard input, read to its end first, or standard
output, which cannot be resumed.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway generate``."""
    parser.add_argument("prompt", nargs="?", help="the text to continue; - reads standard input")
    group = parser.add_argument_group("batch: many prompts instead of one")
    group.add_argument("--input", metavar="JSONL", help="a file with one request per line")
    group.add_argument("--output", metavar="JSONL", help="the file for their results")
    parser.add_argument(
        "--prefix",
        metavar="FILE",
        help="continue the text that 'cutaway cache save' saved in FILE; the prompt follows it",
    )
    arguments.add_groups(parser, "prompt")
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    arguments.add_interventions(parser)
    arguments.add_groups(parser, "trace")
    parser.add_argument(
        "--receipt", metavar="KEY", help="sign a receipt with this key, for others to check, and "
        "write it into this folder (cutaway receipt -h)",
    )  # fmt: skip
    arguments.add_output_arguments(parser, samples=True)


def run(args: Namespace) -> int:
    """Generate texts and print or write them; return an exit code: 130 after Ctrl-C."""
    if args.input is None and args.output is None:
        return _generate_one(args)
    if args.prompt is not None:
        raise InputError("give a prompt, or --input and --output, not both")
    if args.prefix is not None:
        raise InputError("--prefix goes with one prompt: leave out --input and --output, or it")
    if args.input is None or args.output is None:
        raise InputError("--input and --output belong together: give both")
    if args.fail_if_cut:
        raise InputError(
            "--fail-if-cut is for one prompt: the records of --output say what was cut"
        )
    if hasattr(args, "trace"):
        raise InputError("--trace records one prompt: leave out --input and --output, or --trace")
    if args.receipt is not None:
        raise InputError("--receipt is of one prompt: leave out --input and --output, or --receipt")
    from cutaway.cli import bulk

    return bulk.run(args, namespace.request_options(args))


def _generate_one(args: Namespace) -> int:
    if args.prompt is None and args.prefix is None:
        raise InputError("give a prompt, or --input and --output")
    prompt = namespace.read_text(args.prompt or "")
    options = namespace.request_options(args)
    if not args.json and {"logprobs", "prompt_logprobs"} & options.keys():
        raise InputError("--logprobs and --prompt-logprobs are printed as JSON: add --json")
    sign = args.receipt and feature("evidence.receipt_command").signer(args.receipt, options)
    llm = console.load(args)
    if args.prefix is not None:
        prompt = _restore_prefix(args, llm) + prompt
    from cutaway.methods.importance import constraint_estimate

    options |= namespace.read_track_option(args, llm)
    with ExitStack() as stack:
        streams = [stack.enter_context(stream) for stream in llm.streams(prompt, **options)]
        stack.enter_context(console.stoppable(*streams))
        if "align" in options:
            done = [_write_aligned(args, streams)]
        else:
            done = [_write_sample(args, streams, place) for place in range(len(streams))]
    code = reports.finish(args, streams, done, constraint_estimate(done))
    if sign:
        sign(streams)
    return code


def _restore_prefix(args: Namespace, llm: "LLM") -> str:
    """Put the keys and values that --prefix names into the cache, and return their text."""
    if not getattr(args, "kv_cache", True):
        raise InputError("--no-kv-cache computes everything again: leave it or --prefix out")
    prefix = llm.restore_prefix(args.prefix)
    if prefix.text is None:
        raise InputError(
            f"--prefix: {args.prefix} was saved from token ids or messages, which no text can "
            "follow; use LLM.restore_prefix"
        )
    if prefix.special != hasattr(args, "special"):
        verb = "add it" if prefix.special else "leave it out"
        preposition = "with" if prefix.special else "without"
        raise InputError(f"--special: {args.prefix} was saved {preposition} it; {verb}")
    return prefix.text


def _write_aligned(args: Namespace, streams: list["Stream"]) -> "Completion":
    """Write all samples, choose one, and print this sample and its statistics."""
    from cutaway.methods.importance import align

    done = align([console.write(stream, show=False) for stream in streams])
    if not args.json:
        console.put(done.text)
        console.end_line(figures=not args.quiet)
    reports.show_figures(args, done)
    return done


def _write_sample(args: Namespace, streams: list["Stream"], place: int) -> "Completion":
    """Print one sample and its statistics; the same engine steps write the other samples."""
    reports.begin(args, streams, place)
    completion = console.write(streams[place], show=not args.json)
    reports.end(args, streams, completion)
    return completion
