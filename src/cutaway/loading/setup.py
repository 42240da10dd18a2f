"""How a model may be run, as it is asked for before anything is loaded.

Knows the settings and their limits. Refuses to know files.
"""

from dataclasses import dataclass
from os import PathLike

from cutaway import backends
from cutaway.checks import check_choice, check_int
from cutaway.model.config import MAX_CONTEXT

LEAST_KV_TOKENS = 8192
QUANTIZE = ("q8_0", "q6_k", "q4_1", "q4_0")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is to be loaded, checked before anything is fetched.

    backend   how ops are computed, one of ``backends.BACKENDS``; None is the machine's best
    threads   how many threads compute; None takes as many as ``default_threads`` says
    context   tokens of prompt and output together; None takes the model's own
    kv_tokens tokens of all sequences together whose keys and values fit into memory; None takes the
              context's, or 8192 where that is more
    quantize  the format that matrices in F32, F16 or BF16 get while they are loaded, of QUANTIZE
    kv        how keys and values are stored, of backends.KV_FORMATS
    offload_folder  where weights are kept in a file, of which memory is only a cache

    Raises InputError naming the field.
    """

    backend: str | None = None
    threads: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    quantize: str | None = None
    kv: str = "f16"
    offload_folder: str | PathLike[str] | None = None

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
        check_quantize(self.quantize)
        check_kv(self.kv)
        if self.offload_folder is not None:
            from cutaway.offload import check_folder  # few models are larger than memory

            object.__setattr__(self, "offload_folder", check_folder(self.offload_folder))

    def tokens(self, longest: int) -> tuple[int, int]:
        """Of the context and of all keys and values, for a model whose own context is that long."""
        if self.context is not None:
            check_int("context", self.context, 2, longest)
        context = self.context or longest
        return context, self.kv_tokens or max(context, LEAST_KV_TOKENS)


def check_kv(kv: str) -> None:
    """InputError where keys and values cannot be stored so."""
    check_choice("kv", kv, backends.KV_FORMATS)


def check_quantize(quantize: str | None) -> None:
    """InputError where matrices cannot be stored so."""
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZE)
