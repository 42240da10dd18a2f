"""The doctor: the damage of a quantisation, of weights or of the KV cache, on the user's own text.

``Doctor`` lets BASE read a text once, and compares every position with a changed model: all tensors
changed, or one at a time. ``Doctor.mix`` proposes formats that fit into a size, with the least
divergence per byte saved. It adds up the divergences of single tensors, which is right while each
is small; the mix itself is measured afterwards. Knows models, files and formats; ``findings``
defines the figures.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from cutaway._version import __version__
from cutaway.api.llm import LLM
from cutaway.base.checks import check_choice, check_int
from cutaway.base.progress import Progress, silent
from cutaway.compute.backends import Backend
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.open import open_model, stat_model
from cutaway.compute.loading.parts import open_as
from cutaway.errors import InputError
from cutaway.features.measure.doctor.findings import (
    Damage,
    Diagnosis,
    Ids,
    ModelChange,
    ModelPath,
    Parted,
    Positions,
    TensorCost,
    compare_texts,
    draw,
    map_of_tensors,
    prompt_length,
    prompts,
)
from cutaway.features.measure.doctor.reading import BaseReading, Record, windows
from cutaway.files import hub
from cutaway.files.weights import ModelFile, pieces
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.mixes import MIXES
from cutaway.files.weights.quantised import MixedFile, refuse_quantised

__all__ = [
    "Damage", "Diagnosis", "Doctor", "ModelChange", "Parted", "Positions", "ProposedMix",
    "TensorChoice", "TensorCost", "check_draws", "map_of_tensors", "propose",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """A tensor in a format: its bytes, and the mean KL in nats where it alone is changed."""

    tensor: str
    format: str
    nbytes: int
    kl: float


@dataclass(frozen=True, slots=True)
class ProposedMix:
    """Formats of tensors, their size, and the KL that they are expected to cost.

    formats  the new format of each tensor that changes, by tensor
    nbytes   the bytes of all tensors of the file
    kl       the sum of the tensors' own mean KLs, in nats
    """

    formats: dict[str, str]
    nbytes: int
    kl: float


def propose(choices: Iterable[TensorChoice], fixed: int, under: int) -> ProposedMix:
    """Find by a greedy search a mix whose tensors take at most ``under`` bytes.

    choices: all formats of each tensor; BASE's comes first, with a kl of 0
    fixed: bytes of the tensors without a choice
    InputError where even the smallest formats do not fit.
    """
    menus: dict[str, list[TensorChoice]] = {}
    for choice in choices:
        menus.setdefault(choice.tensor, []).append(choice)
    picks = {tensor: max(menu, key=lambda c: (c.nbytes, -c.kl)) for tensor, menu in menus.items()}
    size = fixed + sum(choice.nbytes for choice in picks.values())
    for step in sorted(
        (step for menu in menus.values() for step in _steps(menu)), key=lambda step: step[0]
    ):
        if size <= under:
            break
        _, choice = step
        size += choice.nbytes - picks[choice.tensor].nbytes
        picks[choice.tensor] = choice
    check_under(size, under)
    base = {tensor: menu[0].format for tensor, menu in menus.items()}
    formats = {t: c.format for t, c in picks.items() if c.format != base[t]}
    return ProposedMix(formats, size, sum(choice.kl for choice in picks.values()))


def check_under(smallest: int, under: int) -> None:
    """Raise InputError where the smallest mix does not fit."""
    if smallest > under:
        raise InputError(
            "under",
            f": the smallest mix of these formats takes {smallest:,} bytes: allow that many, "
            "or name a smaller format",
        )


def _steps(menu: Sequence[TensorChoice]) -> list[tuple[float, TensorChoice]]:
    """Return steps from the largest format down: (KL per byte saved, the smaller format).

    Each step costs more per byte than the step before. Formats above the lower convex hull are left
    out, since mixes of other formats cost less.
    """
    hull: list[TensorChoice] = []
    for choice in sorted(menu, key=lambda c: (-c.nbytes, c.kl)):
        if hull and choice.nbytes == hull[-1].nbytes:
            continue
        while len(hull) > 1 and _slope(hull[-2], choice) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return [(_slope(a, b), b) for a, b in pairwise(hull)]


def _slope(larger: TensorChoice, smaller: TensorChoice) -> float:
    return (smaller.kl - larger.kl) / (larger.nbytes - smaller.nbytes)


# -- the examination -------------------------------------------------------------------------------


_MOST_TOP = 1000


class Doctor:
    """BASE and a text that it has read; each method measures a change of BASE on that text.

    base      a name, path or folder, as for ``LLM``
    text      the user's text. BASE reads at most ``tokens`` of its tokens, in windows of ``window``
              tokens, or of the model's context where the context is shorter
    top       how many of the likeliest tokens are compared
    backend, threads   as for ``LLM``
    progress  called with (the task, the amount done, the amount in all)
    stopped   called between two steps; once it returns True, KeyboardInterrupt is raised

    Closing the doctor, or leaving its ``with`` block, frees memory and disk: BASE's logits take a
    nameless file of 4 bytes for each token of the vocabulary at each position.
    Raises InputError for a bad argument and for a model whose attention is not causal.
    """

    def __init__(
        self, base: ModelPath, text: str, *, tokens: int = 1024, window: int = 512, top: int = 10,
        backend: str | None = None, threads: int | None = None, progress: Progress = silent,
        stopped: Callable[[], bool] = bool,
    ) -> None:  # fmt: skip
        check_int("tokens", tokens, 2)
        check_int("window", window, 2)
        check_int("top", top, 1, _MOST_TOP)
        self._loading: dict[str, Any] = {"backend": backend, "threads": threads}
        self._progress, self._stopped = progress, stopped
        self._path = hub.resolve(str(base))
        self._base_texts: dict[tuple[int, int, float], list[Ids]] = {}
        with ExitStack() as opened:
            self._file = opened.enter_context(open_model(self._path))
            self._llm = opened.enter_context(self._load(self._path))
            if not self._llm.config.is_causal:
                raise InputError("the doctor needs a model that sees the past alone")
            self.window = min(window, self._llm.model.context)
            self._texts = self._windows(text, tokens)
            report = self._reporter("reading with BASE", sum(len(ids) - 1 for ids in self._texts))
            vocab = self._llm.tokenizer.vocab_size
            self._reading = BaseReading(self._llm.backend, self._texts, vocab, top, report)
            opened.callback(self._reading.close)
            self.close = opened.pop_all().close

    # -- measuring -----------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """BASE's name."""
        return self._llm.name

    @property
    def positions(self) -> int:
        """How many positions of the text are compared."""
        return self._reading.count

    @property
    def texts(self) -> tuple[Ids, ...]:
        """The windows of the text, as token ids."""
        return tuple(self._texts)

    @property
    def kv_bytes(self) -> int:
        """The bytes of a token's keys and values in BASE."""
        return self._llm.model.kv.bytes_per_token

    @property
    def nbytes(self) -> int:
        """The bytes of BASE's tensors."""
        return sum(info.nbytes for info in self._file.tensors.values())

    def diagnose(
        self,
        change: ModelChange,
        *,
        draws: int = 0,
        draw_tokens: int = 48,
        temperature: float = 1.0,
    ) -> Diagnosis:
        """Measure a whole change: its damage, and how many of ``draws`` pairs of texts differ.

        BASE and the changed model draw each pair with the same luck. draw_tokens: the length of
        each text. InputError where the other model has another vocabulary.
        """
        check_draws(draws, draw_tokens, self.window)
        path = self._path if change.quant is None else hub.resolve(str(change.quant))
        if change.quantize is not None:
            self._check_plain()
        with self._load(path, quantize=change.quantize, kv=change.kv) as llm:
            if llm.tokenizer.vocab_size != self._llm.tokenizer.vocab_size:
                raise InputError(f"QUANT: {llm.name} has another vocabulary than {self.base}")
            damage = self._damage(llm.backend, f"reading with {change.name}")
            pairs = self._pairs(llm, change, draws, draw_tokens, temperature) if draws else None
            nbytes, kv_bytes = llm.model.parts.nbytes, llm.model.kv.bytes_per_token
        return Diagnosis(change.name, nbytes, kv_bytes, damage, pairs)

    def tensors(
        self, quant: ModelPath | None = None, *, formats: Sequence[str] = ()
    ) -> Iterator[TensorCost]:
        """Measure each tensor alone in another format, and yield its cost, in the file's order.

        quant: a file with the other tensors
        formats: the formats of ``cutaway quantize`` to try, where no quant is given
        Measurements with the same arithmetic, files and text are read from the user's cache.
        Closing the iterator early stops it.
        """
        with ExitStack() as files:
            tensors = [*self._differing_tensors(self._open_sources(quant, formats, files))]
            if not tensors:
                raise InputError("no tensor differs from BASE's: name another file or format")
            record, count = self._record(quant), self._reading.count
            done = self._reporter("tensor by tensor", len(tensors) * count)
            for count_measured, (name, file) in enumerate(tensors, 1):
                yield self._cost(name, file, record, lambda _: self._check_stopped())
                done(count_measured * count)

    def check_size(
        self, under: int, quant: ModelPath | None = None, *, formats: Sequence[str] = ()
    ) -> None:
        """Raise InputError where every mix takes more than ``under`` bytes.

        quant, formats: as for ``tensors``
        """
        with ExitStack() as files:
            sizes = {name: info.nbytes for name, info in self._file.tensors.items()}
            for name, file in self._differing_tensors(self._open_sources(quant, formats, files)):
                sizes[name] = min(sizes[name], file.info(name).nbytes)
        check_under(sum(sizes.values()), under)

    def mix(self, costs: Sequence[TensorCost], under: int) -> ProposedMix:
        """Propose formats for measured tensors so that all tensors take at most ``under`` bytes.

        Raises InputError where even the smallest formats do not fit.
        """
        menus = {cost.tensor: (cost.base_format, cost.base_nbytes) for cost in costs}
        fixed = self.nbytes - sum(nbytes for _, nbytes in menus.values())
        unchanged = [
            TensorChoice(name, format, nbytes, 0.0) for name, (format, nbytes) in menus.items()
        ]
        lower = [TensorChoice(c.tensor, c.format, c.nbytes, c.damage.kl.mean) for c in costs]
        return propose([*unchanged, *lower], fixed, under)

    def write(
        self,
        mix: ProposedMix,
        path: Path,
        quant: ModelPath | None = None,
        *,
        formats: Sequence[str] = (),
    ) -> None:
        """Write BASE with the formats of a mix into a GGUF file; quant, formats as for ``tensors``.

        An existing file is replaced once the new one is complete. CutawayError where it cannot be
        written.
        """
        with ExitStack() as files:
            sources = self._open_sources(quant, formats, files)
            files_by_tensor = {
                name: next(file for file in sources if file.info(name).format == format)
                for name, format in mix.formats.items()
            }
            mixed = MixedFile(self._file, files_by_tensor)
            size = sum(info.nbytes for info in mixed.tensors.values())
            write_gguf(path, mixed, self._reporter("writing", size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- parts ---------------------------------------------------------------------------------

    def _load(self, path: Path, **options: Any) -> LLM:
        """Load a model without a prefix cache: the doctor uses KV blocks without the engine."""
        return LLM(path, **self._loading, **options, prefix_cache=False, progress=False)

    def _windows(self, text: str, tokens: int) -> list[Ids]:
        ids = self._llm.tokenize(text)[:tokens]
        texts = windows(ids, self.window, self._llm.tokenizer.bos_id)
        if not texts:
            raise InputError("the text has no token that another predicts: write more")
        return texts

    def _reporter(self, task: str, total: int) -> Callable[[int], None]:
        def tell(done: int) -> None:
            self._check_stopped()
            self._progress(task, done, total)

        tell(0)
        return tell

    def _check_stopped(self) -> None:
        if self._stopped():
            raise KeyboardInterrupt

    def _check_plain(self) -> None:
        twin = f"cutaway quantize {self._path} twin.gguf --to f16"
        refuse_quantised(self._file, f"make a twin in F16 the BASE: {twin}")

    def _damage(self, backend: Backend, task: str) -> Damage:
        report = self._reporter(task, self._reading.count)
        return Damage.from_positions(self._reading.compare(backend, report), self._reading.top)

    def _pairs(
        self, llm: LLM, change: ModelChange, count: int, tokens: int, temperature: float
    ) -> Parted:
        begins = prompts(self._texts, count, prompt_length(self.window))
        key = count, tokens, temperature
        if key not in self._base_texts:
            report = self._reporter("drawing with BASE", count)
            self._base_texts[key] = draw(self._llm, begins, tokens, temperature, report)
        report = self._reporter(f"drawing with {change.name}", count)
        return compare_texts(
            self._base_texts[key], draw(llm, begins, tokens, temperature, report), tokens
        )

    def _open_sources(
        self, quant: ModelPath | None, formats: Sequence[str], files: ExitStack
    ) -> list[ModelFile]:
        """Open the sources of other tensors: a file, or formats of BASE. ``files`` closes them."""
        if (quant is None) == (not formats):
            raise InputError("give QUANT, or formats for BASE's own tensors, and not both")
        if quant is not None:
            return [files.enter_context(open_model(hub.resolve(str(quant))))]
        self._check_plain()
        for format in formats:
            check_choice("formats", format, tuple(MIXES))
        opened = [open_as(self._path, format) for format in dict.fromkeys(formats)]
        return [files.enter_context(source) for source in opened]

    def _differing_tensors(self, sources: Sequence[ModelFile]) -> Iterator[tuple[str, ModelFile]]:
        """Yield each matrix that differs from BASE's, once in each format, and its file."""
        read = {name for op in self._llm.model.graph.ops for name in op.weights.values()}
        seen = set[tuple[str, str]]()
        for file in sources:
            for name, info in self._file.tensors.items():
                if len(info.shape) < 2 or name not in read:
                    continue
                if name not in file.tensors or file.info(name).shape != info.shape:
                    raise InputError(f"QUANT is no file of the same model: its {name} differs")
                key = (name, file.info(name).format)
                if key not in seen and self._differs(name, file):
                    seen.add(key)
                    yield name, file

    def _differs(self, name: str, file: ModelFile) -> bool:
        if file.info(name).format != self._file.info(name).format:
            return True
        piece_pairs = zip(pieces(file.raw(name)), pieces(self._file.raw(name)), strict=True)
        return not all(np.array_equal(base_piece, other) for base_piece, other in piece_pairs)

    def _cost(
        self, name: str, file: ModelFile, record: Record, tell: Callable[[int], object]
    ) -> TensorCost:
        base_info, other = self._file.info(name), file.info(name)
        key = f"{name} {other.format}"
        if (figures := record.get(key)) is None:
            mixed = MixedFile(self._file, {name: file})
            changed = self._llm.backend.with_weights(mixed, {name})
            damage = Damage.from_positions(self._reading.compare(changed, tell), self._reading.top)
            record.put(key, figures := damage.to_dict())
        return TensorCost(
            name,
            other.format,
            base_info.format,
            other.nbytes,
            base_info.nbytes,
            Damage.from_dict(figures),
        )

    def _record(self, quant: ModelPath | None) -> Record:
        model, ids = self._llm.model, repr(self._texts).encode()
        question = {
            "version": __version__, "arithmetic": model.arithmetic, "top": self._reading.top,
            "base": model.identity.weights, "texts": sha256(ids).hexdigest(), "quant": None,
        }  # fmt: skip
        if quant is not None:
            path = hub.resolve(str(quant))
            question["quant"] = identify(path, stat_model(path)).weights
        return Record(question)


def check_draws(draws: int, draw_tokens: int, window: int) -> None:
    """Raise InputError where ``draw_tokens`` tokens do not fit into a window after a prompt."""
    check_int("draws", draws, 0)
    if draws:
        check_int("draw_tokens", draw_tokens, 1, window - prompt_length(window))
