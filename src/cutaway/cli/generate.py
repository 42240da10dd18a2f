"""``cutaway generate``: continue a text. Nothing but the text goes to standard output."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace

from cutaway.cli import arguments, console, streams

_EPILOG = """
examples:
  cutaway generate "The sky is"
  cutaway generate "The capital of France is" --temperature 0 --max-tokens 32
  echo "Once upon a time" | cutaway generate - --seed 7 --stop "The end"
  cutaway generate "def fibonacci(n):" --json | python -m json.tool
  cutaway generate "The sky is" --price 0.15,0.60

The text goes to standard output, statistics to standard error. Ctrl-C ends the text after the
step that is being computed and keeps what was written (exit code 130); a second Ctrl-C ends at
once. A prompt that leaves no room in the model's context is refused, never cut.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway generate``."""
    parser.epilog = _EPILOG
    parser.add_argument("prompt", help="the text to continue; - reads standard input")
    parser.add_argument(
        "--special", action="store_true", default=SUPPRESS,
        help="read special tokens such as <|im_start|> in the prompt as tokens, not as text",
    )  # fmt: skip
    arguments.add_model_arguments(parser)
    arguments.add_request_arguments(parser)
    arguments.add_output_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: Namespace) -> int:
    """Generate, print, and return 0, or 130 where Ctrl-C ended the text."""
    prompt = arguments.read_text(args.prompt)
    options = arguments.request_options(args)
    llm = console.load(args)
    completion = console.write_stream(llm, prompt, options, show=not args.json)
    if args.json:
        document = completion.to_dict()
        if args.price is not None:
            document["cost"] = console.cost(completion, args.price)
        streams.print_json(document)
    elif sys.stdout.isatty():
        print()
    if not args.quiet:
        console.tell(console.statistics(completion, args.price))
    return 130 if completion.finish_reason == "aborted" else 0
