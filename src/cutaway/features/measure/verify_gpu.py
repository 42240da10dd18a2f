"""``cutaway verify --backend gpu``: compares a GPU's arithmetic and kernels with the CPU's.

A user whose GPU computes other bits is asked to send the printed table.
"""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from cutaway.base.progress import megabytes, say
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError


def run(args: Namespace) -> int:
    """Compare, print, and return 0, or 1 where bits differ that must be equal."""
    from cutaway._version import __version__
    from cutaway.compute import backends
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.compute.loading.setup import Setup

    if args.offload_folder is not None:
        raise InputError("offload_folder", " cannot be set for the gpu backend")
    setup = Setup(backend="gpu", quantize=args.quantize, kv=args.kv)
    model = LoadedModel.open(
        args.model or "toy-writer", setup, progress=not args.quiet, weights=False
    )
    if not args.quiet:
        say(f"checking {model.name} on the GPU; this takes a few seconds to minutes")
    with model.open_file() as file:
        device, rows = backends.report_gpu(model.graph, file, model.context, setup.kv)
    is_right = all(row.is_right for row in rows)
    document = {
        "model": model.name, "cutaway": __version__, "device": device,
        "comparisons": [row._asdict() | {"passed": row.is_right} for row in rows],
        "passed": is_right,
    }  # fmt: skip
    print_report(args, lambda: document, lambda: _lines(document))
    return 0 if is_right else 1


def _lines(document: dict[str, Any]) -> Iterator[str]:
    d = document["device"]
    yield f"GPU       {d['name']} ({d['type']}), vendor {d['vendor'] or 'unknown'}"
    yield f"driver    {d['driver'] or 'unknown'}; {d['api']}, wgpu {d['wgpu']}"
    yield f"buffers   of {megabytes(d['buffer_bytes'])} at most"
    flushes = "flushes denormals" if d["flushes"] else "keeps denormals"
    yield f"numbers   multiply-add by {d['fused']}; {flushes}"
    yield ""
    rows = [("PART", "NAME", "NUMBERS", "DIFFERENT", "")]
    for row in document["comparisons"]:
        remark = "" if row["passed"] and not row["differing"] else "allowed"
        if not row["passed"]:
            remark = f"WRONG {row['first']}".rstrip()
        numbers = f"{row['numbers']:12,}", f"{row['differing']:10,}"
        rows.append((row["part"], row["name"], *numbers, remark))
    yield from table(rows)
    yield ""
    verdict = "the GPU may compute it, with the CPU's bits"
    if not document["passed"]:
        verdict = "this GPU computes other bits; please send this table"
    yield f"{document['model']}, cutaway {document['cutaway']}: {verdict}"
