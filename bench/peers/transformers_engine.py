"""transformers on PyTorch: the GGUF file dequantised to bfloat16, its own default loop."""

from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

_STEPS, _WARM = 16, 2


class Engine:
    """See worker.py."""

    def __init__(self, path: str, threads: int) -> None:
        self.torch: Any = import_module("torch")
        lib: Any = import_module("transformers")
        self.torch.set_num_threads(threads)
        self.torch.manual_seed(0)
        file = Path(path)
        self.model = lib.AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=self.torch.bfloat16
        ).eval()
        self.info: dict[str, Any] = {"version": lib.__version__}

    def decode(self, context: int, batch: int) -> list[float]:
        """Seconds of the decode steps of one run."""
        past, tokens = self._run(self._prompt(context, batch), None)
        seconds = []
        for _ in range(_STEPS):
            started = perf_counter()
            past, tokens = self._run(tokens, past)
            seconds.append(perf_counter() - started)
        return seconds[_WARM:]

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of one prompt, in a list."""
        prompt = self._prompt(tokens, 1)
        started = perf_counter()
        self._run(prompt, None)
        return [perf_counter() - started]

    def _prompt(self, context: int, batch: int) -> Any:
        vocab = self.model.config.vocab_size
        return self.torch.randint(vocab // 64, vocab, (batch, context))

    def _run(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        """The cache, and the likeliest next token of each row."""
        with self.torch.inference_mode():
            out = self.model(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
