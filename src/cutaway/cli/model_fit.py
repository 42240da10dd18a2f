"""``cutaway models --fit``: which of a person's models fit into this memory, and how fast they
can write at most.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cutaway.base.checks import check_int
from cutaway.base.progress import megabytes
from cutaway.base.resources import Memory, free_memory
from cutaway.cli.terminal.drawing import print_lines
from cutaway.cli.terminal.streams import print_json
from cutaway.compute.loading.fit import MemoryFit, format_rate, measure_bandwidth
from cutaway.compute.loading.info import ModelInfo
from cutaway.compute.model.config import MAX_CONTEXT
from cutaway.errors import CutawayError, InputError
from cutaway.files import hub
from cutaway.files.hub.folders import models_in

_CONTEXT = 8192
_HEAD = ("NAME", "MEMORY", "FITS", "LONGEST TEXT", "WEIGHTS A TOKEN", "AT MOST")


@dataclass(frozen=True, slots=True)
class _Row:
    """A model's line. bandwidth: bytes/s; None if it writes no tokens one after the other."""

    card: ModelInfo
    fit: MemoryFit
    bandwidth: float | None

    @property
    def longest_text(self) -> int | None:
        return self.fit.longest_text(self.card.config.context_length)

    def rate(self, tokens: int) -> float | None:
        """Return the most tokens a second with this many tokens before them."""
        return self.bandwidth and self.bandwidth / self.fit.read(tokens)


def run(args: Namespace) -> int:
    """Print the table to standard output; models that do not run follow it, each with why."""
    context = _CONTEXT if args.context is None else args.context
    context = check_int("--context", context, 1, MAX_CONTEXT)
    memory = free_memory(swap=False)
    paths = _paths(args.fit)
    rows, refusals = [], []
    for path in paths:
        try:
            rows.append(_row(path, args, context, memory))
        except CutawayError as error:
            refusals.append((path, str(error)))
    rows.sort(key=lambda row: row.fit.memory)
    if args.json:
        print_json(_document(memory, rows, refusals))
    else:
        print_lines(_lines(context, memory, rows, refusals))
    return 0


def _paths(names: list[str]) -> list[Path]:
    """Return the files of these names and in these folders; without names, those of the cache."""
    if not names:
        return [model.path for model in hub.available() if model.path is not None]
    paths: list[Path] = []
    for name in names:
        folder = Path(name).expanduser()
        if folder.is_dir() and not (folder / "config.json").is_file():
            inside = models_in(folder)
            if not inside:
                raise InputError(
                    f"{folder} has no .gguf file and no folder of transformers in it: name another"
                )
            paths += inside
        else:
            paths.append(_local_path(name))
    return list(dict.fromkeys(paths))


def _local_path(name: str) -> Path:
    """Return a model's file or folder, which is on this machine; nothing is fetched."""
    model = hub.find(name)
    path = hub.find_local(model) if model else None
    if path is None and (model or name.startswith(hub.HF_PREFIX)):
        raise InputError(
            f"{name} would have to be fetched, and --fit fetches nothing: fetch it first, or name "
            "a file or folder"
        )
    return path or hub.resolve(name)


def _row(path: Path, args: Namespace, context: int, memory: Memory | None) -> _Row:
    card = ModelInfo.read(path, args.quantize, args.kv or "f16")
    context = min(context, card.config.context_length)
    fit = MemoryFit(card.weight_bytes, card.kv, card.active_bytes, context, memory)
    writes = card.config.is_causal and find_spec("cutaway.base._native")
    return _Row(card, fit, measure_bandwidth(fit.read(context)) if writes else None)


def _lines(
    context: int, memory: Memory | None, rows: list[_Row], refusals: list[tuple[Path, str]]
) -> Iterator[str]:
    free = f"{megabytes(memory.free)} of {memory.owner} are free" if memory else "unknown"
    yield f"memory: {free}; texts have {context:,} tokens, or as many as the model takes"
    if measured := [row.bandwidth for row in rows if row.bandwidth]:
        yield f"reading: {megabytes(round(min(measured)))} a second, measured now"
    yield ""
    yield from _table([_HEAD, *map(_cells, rows)])
    if refusals:
        yield ""
        yield from (f"{path.name} does not run: {reason}" for path, reason in refusals)


def _cells(row: _Row) -> tuple[str, ...]:
    fits = {True: "yes", False: "no", None: "unknown"}[row.fit.fits]
    longest = "unknown" if row.longest_text is None else f"{row.longest_text:,} tokens"
    name, memory = row.card.name, megabytes(row.fit.memory)
    first, last = row.rate(0), row.rate(row.fit.context)
    if first is None or last is None:
        return name, memory, fits, longest, "-", "-"
    rate = f"{format_rate(first)} tokens/s, {format_rate(last)} at the end"
    return name, memory, fits, longest, megabytes(row.fit.active), rate


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def _document(
    memory: Memory | None, rows: list[_Row], refusals: list[tuple[Path, str]]
) -> dict[str, Any]:
    return {
        "free_bytes": memory.free if memory else None,
        "models": [
            {
                "name": row.card.name,
                "path": str(row.card.path),
                "context": row.fit.context,
                "memory_bytes": row.fit.memory,
                "fits": row.fit.fits,
                "longest_text": row.longest_text,
                "read_bytes_per_s": row.bandwidth,
                "first_token": _token(row, 0),
                "last_token": _token(row, row.fit.context),
            }
            for row in rows
        ],
        "refused": [{"path": str(path), "reason": reason} for path, reason in refusals],
    }


def _token(row: _Row, tokens: int) -> dict[str, float | None]:
    return {"read_bytes": row.fit.read(tokens), "most_tokens_per_s": row.rate(tokens)}
