"""``cutaway tokenize``: the tokens of a text. Reads the tokenizer, not the weights."""

from argparse import ArgumentParser, Namespace

from cutaway.base.progress import say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import streams
from cutaway.cli.terminal.drawing import names_of, print_lines, quote

EPILOG = """
examples:
  cutaway tokenize "The sky is blue"
  cutaway tokenize --special "<|im_start|>user"
  cutaway tokenize --json - < story.txt
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway tokenize``."""
    parser.add_argument("text", help="the text; - reads standard input")
    arguments.add_model(parser)
    parser.add_argument(
        "--special", action="store_true", help="parse special tokens such as <|im_start|>"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: Namespace) -> int:
    """Print a line per token: its id and its name."""
    from cutaway.compute.loading.open import open_model
    from cutaway.files import hub
    from cutaway.text import Tokenizer

    text = namespace.read_text(args.text)
    with open_model(hub.resolve(args.model)) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    ids = tokenizer.encode(text, special=args.special)
    if args.json:
        streams.print_json({"ids": ids, "tokens": [tokenizer.token_name(i) for i in ids]})
    else:
        name = names_of(tokenizer)
        print_lines(f"{token_id:>7}  {quote(name(token_id))}" for token_id in ids)
        for note in tokenizer.notes(ids, text if args.special else None):
            say(f"note: {note}")
    return 0
