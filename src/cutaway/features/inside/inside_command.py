"""``cutaway trace inside``: attention, logit attribution and the lens of one step."""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.base.counting import check_index, count_from_1
from cutaway.base.progress import say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, drawing, streams
from cutaway.errors import InputError
from cutaway.trace import Trace

if TYPE_CHECKING:
    from cutaway.features.inside.inside_tables import Name, Spark
    from cutaway.features.inside.logit_attribution import LogitAttribution
    from cutaway.features.inside.look import Look

EPILOG = """
examples:
  cutaway trace inside run.jsonl --step 12
  cutaway trace inside run.jsonl --step 12 --rival " never"
  cutaway trace inside run.jsonl --step 12 --layer 9 --head 3
  cutaway trace inside run.jsonl --step 12 --tensor blk.9.attn_output
  cutaway trace inside run.jsonl --step 12 --nearest
  cutaway trace inside run.jsonl --step 12 --out look.safetensors

Of layers with a recurrent state it shows the weight of each token's value in each head.

Nothing of this was recorded. The step is computed again from its tokens, and its logits must have
the hash on record: the last line says so. The reference backend has other bits, which its last line
says. docs/inside.md has the formulas.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace inside``."""
    arguments.add_step(parser)
    parser.add_argument("--layer", type=int, metavar="N", help="the heads of one layer, from 0")
    parser.add_argument(
        "--head",
        type=int,
        metavar="N",
        help="with --layer: one head, from 0 (of attention, where the layer has a state beside it)",
    )
    parser.add_argument("--tensor", metavar="NAME", help="the numbers of one tensor, by its name")
    parser.add_argument(
        "--nearest", action="store_true",
        help="the tokens whose embeddings are nearest to that of the token that the step read",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document instead")
    form.add_argument("--out", metavar="FILE", help="write all arrays into a safetensors file")
    arguments.add_model_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def run(args: Namespace) -> int:
    """Compute the step again, and print the chosen tables."""
    if args.head is not None and args.layer is None:
        raise InputError("--head: say of which layer, too, with --layer")
    if args.layer is not None and (args.json or args.out):
        raise InputError("--layer: the document holds all layers and heads; leave it out")
    if args.nearest and (args.tensor or args.out or args.layer is not None):
        raise InputError("--nearest: goes with no --tensor, --layer or --out; leave one out")
    trace = Trace.read(args.file)
    out = Path(args.out) if args.out else None
    if out and out.exists():
        raise InputError(f"--out: {out} exists already; name another file, or remove it")
    streams.check_output("--out", args.out)
    check_index("--step", args.step, range(len(trace.steps) or args.step + 1))
    llm = console.load(args)
    from cutaway.features.inside.look import inside
    from cutaway.features.inside.summary import arrays, file_header, nearest_tokens, to_dict
    from cutaway.files.weights.safetensors import write_safetensors

    look = inside(llm, trace, args.step)
    attribution = look.logit_attribution(namespace.token(args.rival))
    extra = {args.tensor: look.tensor(args.tensor)} if args.tensor else {}
    if args.json:
        name = llm.tokenizer.token_name
        document = to_dict(look, attribution, look.lens(), name)
        if extra:
            document["tensor"] = {key: tensor.tolist() for key, tensor in extra.items()}
        if args.nearest:
            document["nearest"] = [asdict(near) for near in nearest_tokens(look, name)]
        streams.print_json(document)
        return 0
    if out:
        about = file_header(look, attribution, trace.sha256, llm.name)
        write_safetensors(out, arrays(look, attribution, look.lens()) | extra, about)
        if not args.quiet:
            say(f"[{out}: step {count_from_1(args.step)}, {look.proof()}]")
        return 0
    spark = drawing.Style.from_stream(sys.stdout).spark
    lines = _lines(args, look, attribution, drawing.names_of(llm.tokenizer), spark)
    drawing.print_lines([*lines, "", look.proof()])
    return 0


def _lines(
    args: Namespace, look: "Look", attribution: "LogitAttribution", name: "Name", spark: "Spark"
) -> list[str]:
    """Write the chosen tables."""
    from cutaway.features.inside import inside_tables

    if args.tensor:
        return inside_tables.describe_tensor(args.tensor, look.tensor(args.tensor))
    if args.nearest:
        return inside_tables.describe_embedding(look, name)
    if args.layer is None:
        return inside_tables.describe_step(look, attribution, look.lens(1), name, spark)
    if args.head is None:
        return inside_tables.describe_layer(look, attribution, args.layer, name)
    return inside_tables.describe_head(look, attribution, (args.layer, args.head), name)
