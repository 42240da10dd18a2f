"""The settings of a load, checked before anything is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING

from cutaway.base.checks import check_choice, check_int, shown
from cutaway.compute import backends
from cutaway.compute.model.config import MAX_CONTEXT
from cutaway.errors import InputError, Name

if TYPE_CHECKING:
    from cutaway.compute.loading.adapter import AdapterFiles

LEAST_KV_TOKENS = 8192
MOST_ADAPTERS, _LONGEST = 256, 200


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is to be loaded, checked before anything is fetched.

    backend   how ops are computed, one of ``backends.BACKENDS``; None is the machine's best
    threads   how many threads compute; None takes as many as ``default_threads`` says
    context   the most tokens of prompt and output together; None takes the model's own limit
    kv_tokens for how many tokens, of all sequences together, keys and values fit into memory; None
              takes the context, but at least 8192
    quantize  one of MIXES: matrices in F32, F16 or BF16 are quantised to it while they are loaded
    kv        how keys and values are stored: one of backends.KV_FORMATS, or two, as KEYS,VALUES
    offload_folder  the folder for a file that has the weights; memory is only a cache of this file
    lora      an adapter of all texts, FILE or FILE:SCALE; with commas, the sum of several files
    adapters  more adapters, written like lora, by the names under which requests ask for them

    An InputError names the field that is wrong.
    """

    backend: str | None = None
    threads: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    quantize: str | None = None
    kv: str = "f16"
    offload_folder: str | PathLike[str] | None = None
    lora: str | PathLike[str] | None = None
    adapters: Mapping[str, str | PathLike[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("context", 2, MAX_CONTEXT),
            ("threads", 1, backends.MAX_THREADS),
            ("kv_tokens", backends.KV_BLOCK, MAX_CONTEXT),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_int(name, value, low, high))
        if self.backend is not None:
            check_choice("backend", self.backend, backends.BACKENDS)
            backends.check_built(self.backend)
        check_quantize(self.quantize)
        object.__setattr__(self, "kv", backends.check_kv(self.kv))
        if self.offload_folder is not None:
            from cutaway.base.offload import check_folder  # few models are larger than memory

            object.__setattr__(self, "offload_folder", check_folder(self.offload_folder))
        self.adapter_files()

    def adapter_files(self) -> "dict[str, AdapterFiles]":
        """Return the adapters' files by name, ``lora`` as ""; InputError if a setting is wrong."""
        if self.lora is None and self.adapters == {}:
            return {}
        from cutaway.compute.loading.adapter import AdapterFiles  # few models have some

        if not isinstance(self.adapters, Mapping) or len(self.adapters) > MOST_ADAPTERS:
            raise InputError(
                "adapters",
                f" must be names with their files, {MOST_ADAPTERS} at most, not "
                f"{shown(self.adapters)}",
            )
        if self.lora is not None and self.adapters:
            raise InputError(
                "lora",
                " is an adapter of all texts, and adapters are of those that name one: give "
                "one of the two",
            )
        for name in self.adapters:
            if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable():
                raise InputError(
                    "adapters", f": a name must have 1 to {_LONGEST} characters, not {shown(name)}"
                )
        if self.lora is not None:
            return {"": AdapterFiles.read("lora", self.lora)}
        return {
            name: AdapterFiles.read(Name("adapters", prose=f": {name}"), at)
            for name, at in self.adapters.items()
        }

    def tokens(self, longest: int) -> tuple[int, int]:
        """Return (context, kv_tokens) for a model whose own context is ``longest`` tokens."""
        if self.context is not None:
            check_int("context", self.context, 2, longest)
        context = self.context or longest
        return context, self.kv_tokens or max(context, LEAST_KV_TOKENS)


def check_quantize(quantize: str | None) -> None:
    """InputError unless ``quantize`` is one of MIXES or None."""
    if quantize is not None:
        from cutaway.files.weights.mixes import MIXES  # most models are quantised already

        check_choice("quantize", quantize, tuple(MIXES))
