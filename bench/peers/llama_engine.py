"""llama.cpp through llama-cpp-python's low-level interface, with what makes it fastest.

Flash attention on, all threads for prompts too, and a context no larger than the text: a larger
one costs it time. Tokens are chosen by argmax outside the library, as cheaply as can be.
"""

from ctypes import c_uint8
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

_ROWS = 512
_STEPS, _WARM = 32, 4


class Engine:
    """See worker.py."""

    repacks = True  # copies weights into an order of its own, which is faster where memory has room

    def __init__(self, path: str, threads: int) -> None:
        self.lib: Any = import_module("llama_cpp")
        self.threads = threads
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = self.repacks
        self.model = self.lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {path}")
        self.vocab = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        self.batch = self.lib.llama_batch_init(_ROWS, 0, 1)
        self.contexts: dict[tuple[int, int], Any] = {}
        self.prompts: dict[tuple[int, int], list[Any]] = {}  # each sequence's state after it
        self.rng = np.random.default_rng(0)
        self.info: dict[str, Any] = {
            "version": self.lib.__version__, "instructions": self._instructions(),
        }  # fmt: skip

    def _instructions(self) -> str:
        """The best that it was built with."""
        said = self.lib.llama_print_system_info().decode()
        best_first = ("AVX512_VNNI", "AVX512", "AVX_VNNI", "AVX2", "MATMUL_INT8", "NEON")
        return next((name for name in best_first if f"{name} = 1" in said), "")

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of the decode steps of one run; its prompts are read once, for all runs."""
        handle = self._with_prompts(context, batch)
        tokens, seconds = self._tokens(batch), []
        for step in range(_STEPS):
            started = perf_counter()
            for sequence, token in enumerate(tokens):
                self._put(sequence, token, context + step, sequence, True)
            self._run(handle, batch)
            logits = self.lib.llama_get_logits(handle)  # waits
            rows = np.ctypeslib.as_array(logits, shape=(batch, self.vocab))
            tokens = self._next(rows)
            seconds.append(perf_counter() - started)
        return seconds[_WARM:]

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of one prompt, in a list."""
        handle = self._context(tokens, 1)
        self.lib.llama_memory_clear(self.lib.llama_get_memory(handle), True)
        started = perf_counter()
        self._read(handle, tokens, 0)
        return [perf_counter() - started]

    def _with_prompts(self, context: int, batch: int) -> Any:
        """A context in which that many prompts were read, and nothing after them."""
        handle = self._context(context + _STEPS, batch)
        if (context, batch) not in self.prompts:
            for sequence in range(batch):
                self._read(handle, context, sequence)
            self.prompts[context, batch] = [self._saved(handle, i) for i in range(batch)]
            return handle
        memory = self.lib.llama_get_memory(handle)
        for sequence, saved in enumerate(self.prompts[context, batch]):
            if not self.lib.llama_memory_seq_rm(memory, sequence, context, -1):  # has a state
                self.lib.llama_memory_seq_rm(memory, sequence, -1, -1)
                self.lib.llama_state_seq_set_data(handle, saved, len(saved), sequence)
        return handle

    def _saved(self, handle: Any, sequence: int) -> Any:
        """The bytes of a sequence; a recurrent state cannot be cut back to a prompt."""
        size = self.lib.llama_state_seq_get_size(handle, sequence)
        saved = (c_uint8 * size)()
        self.lib.llama_state_seq_get_data(handle, saved, size, sequence)
        return saved

    def _context(self, tokens: int, batch: int) -> Any:
        """A context for so many sequences of so many tokens."""
        if (tokens, batch) not in self.contexts:
            params = self.lib.llama_context_default_params()
            params.n_ctx = batch * (-(-tokens // 256) * 256)
            params.n_batch = params.n_ubatch = _ROWS
            params.n_seq_max = batch
            params.n_threads = params.n_threads_batch = self.threads
            params.flash_attn_type = self.lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.no_perf = True
            self.contexts[tokens, batch] = self.lib.llama_init_from_model(self.model, params)
        return self.contexts[tokens, batch]

    def _read(self, handle: Any, tokens: int, sequence: int) -> None:
        """A prompt of random tokens; the logits of its last are wanted."""
        for start in range(0, tokens, _ROWS):
            part = self._tokens(min(_ROWS, tokens - start))
            for i, token in enumerate(part):
                self._put(i, token, start + i, sequence, start + i == tokens - 1)
            self._run(handle, len(part))
        self.lib.llama_synchronize(handle)

    def _put(self, i: int, token: int, position: int, sequence: int, wanted: bool) -> None:
        batch = self.batch
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.logits[i] = wanted

    def _next(self, logits: Any) -> list[int]:
        """The tokens that follow: (batch, vocab) -> one each."""
        best: list[int] = logits.argmax(1).tolist()
        return best

    def _run(self, handle: Any, rows: int) -> None:
        self.batch.n_tokens = rows
        code = self.lib.llama_decode(handle, self.batch)
        if code:
            raise RuntimeError(f"llama_decode says {code}")

    def _tokens(self, count: int) -> list[int]:
        drawn: list[int] = self.rng.integers(self.vocab // 64, self.vocab, count).tolist()
        return drawn
