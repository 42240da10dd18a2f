"""The three models of agent_hour.py, as files that cutaway and llama.cpp both read.

SmolLM2; a model in the form of Qwen 3.5, three of whose four layers have a recurrent state; and one
in the form of gpt-oss, of which every second layer sees a window of 128 tokens. The latter two are
small and have random weights: they show what is read and how fast, not a text. All have SmolLM2's
tokenizer, the session's chat template, and a context of 32,768 tokens: past its own 8,192 SmolLM2's
texts mean nothing, but are read and written as fast.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_session import TEMPLATE
from cutaway.files import hub
from cutaway.files.weights import GGUFFile, ModelFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.text import Tokenizer
from make_model import RandomModel
from shapes import SHAPES

CONTEXT = 32_768
_VOCAB = 49_152  # SmolLM2's
SMALL = {
    "Qwen 3.5's form": replace(
        SHAPES["qwen3.5-0.8b"], hidden=512, layers=8, heads=4, kv_heads=2, head_dim=128, ffn=1024,
        vocab=_VOCAB, attends=(3, 7), state=(64, 8, 8, 512),
    ),
    "windows": replace(
        SHAPES["gpt-oss-20b"], hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, ffn=512,
        vocab=_VOCAB, experts=(4, 2), others="Q4_K",
    ),
}  # fmt: skip
MODELS = ("SmolLM2", *SMALL)


class _ForSession(ModelFile):
    """A model with the session's chat template and CONTEXT in place of its own."""

    def __init__(self, model: ModelFile) -> None:
        self._model, self.path, self.tensors = model, model.path, model.tensors
        self.value_types = model.value_types
        length = f"{model.metadata['general.architecture']}.context_length"
        changes = {"tokenizer.chat_template": TEMPLATE, length: CONTEXT}
        self.metadata = MappingProxyType(dict(model.metadata) | changes)

    def raw(self, name: str) -> Any:
        """See `ModelFile`."""
        return self._model.raw(name)

    def close(self) -> None:
        """See `ModelFile`."""
        self._model.close()


def write_model(name: str, folder: Path) -> Path:
    """Write one of MODELS into the folder; return its path."""
    path = folder / f"{MODELS.index(name)}.gguf"
    with ExitStack() as stack:
        smollm2 = stack.enter_context(GGUFFile(hub.resolve("smollm2", progress=False)))
        model: ModelFile = smollm2
        if name in SMALL:
            model = RandomModel(SMALL[name], name, smollm2, format="Q4_K")
        write_gguf(path, _ForSession(model))
    return path


def token_counter() -> Callable[[str], int]:
    """Return a function that counts the tokens of a text, which are the same in all models."""
    with GGUFFile(hub.resolve("smollm2", progress=False)) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    return lambda text: len(tokenizer.encode(text))
