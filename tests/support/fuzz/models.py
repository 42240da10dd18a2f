"""Models' files: GGUF as it is, and while it is quantised."""

from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from cutaway import LLM
from cutaway.files.weights import FORMATS_BY_ID, GGUFFile
from cutaway.files.weights.importance import ColumnSums, Importance
from cutaway.files.weights.mixes import MIXES
from cutaway.files.weights.quantised import QuantisedFile
from support import random_llama
from support.fuzz.format import Format, use_any
from support.fuzz.gguf_parts import Mutation, Parts, Tensor
from support.fuzz.mutation import mutate_bytes
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_mamba2 import write_tiny_mamba2
from support.random_qwen35 import write_tiny_qwen35

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}<s>assistant: "
TEXT = "ab a é ab\n" * 5  # some 45 tokens: a KV block and more, rows enough for matrix units
KV = ("f16", "f16", "q8_0", "q5_1", "q4_0", "q8_0,q4_0")


def use_model(path: Path, **setup: Any) -> None:
    """Open a model and call every method that a user may call."""
    with LLM(path, progress=False, **setup) as llm:
        use_any(
            lambda: llm.generate(TEXT, max_tokens=4, n=2, seed=1, temperature=1.0, ignore_eos=True),
            lambda: llm.chat([{"role": "user", "content": "ab"}], max_tokens=1),
            lambda: llm.denoise("ab", max_tokens=8, seed=1),
            lambda: llm.embed([TEXT, "a"]),
            lambda: llm.embed_tokens("ab a"),
            lambda: llm.rerank("ab", ["a", "b"]),
        )


class Gguf(Format):
    """Files of all kinds of models and formats; a file's bytes decide how it is opened."""

    name, inputs, kernels = "gguf", 60, True

    def make(self) -> None:
        """Write tiny models of seven architectures, then a llama in each format."""
        at, chat = self.folder / "seeds", {"tokenizer.chat_template": TEMPLATE}
        write_tiny_llama(at / "llama.gguf", metadata=chat, rope_factors=[1.0, 1.5, 2.0, 4.0])
        write_tiny_llama(
            at / "mixture.gguf", metadata=chat, experts=4, format="Q8_0", layers=1, heads=8
        )
        write_tiny_mamba2(at / "mamba2.gguf")
        write_tiny_lfm2(at / "lfm2.gguf", layers=3)
        write_tiny_qwen35(at / "qwen35.gguf", layers=2)
        write_tiny_qwen35(at / "qwen35-draft.gguf", layers=2, draft_head=True)
        write_tiny_granite_hybrid(at / "granite.gguf", layers=2)
        random_llama.write_tiny_late(at / "late.gguf")
        random_llama.write_tiny_ranker(at / "ranker.gguf")
        canvas = {"tokenizer.ggml.mask_token_id": 0, "llada.attention.causal": False}
        write_tiny_llama(at / "canvas.gguf", architecture="llada", metadata={**chat, **canvas})
        for format in FORMATS_BY_ID.values():
            write_tiny_llama(
                at / f"format-{format.name}.gguf", format=format.name, hidden=256, layers=1,
                feed_forward=256, tied=format.quant_block_elements > 32, head_dim=32, heads=8,
                kv_heads=1,
            )  # fmt: skip

    def draw(self, rng: Random) -> bytes:
        """Return a file with changed parts, or changed bytes, or both; a few are unchanged."""
        raw, other = (self.sound_file(rng) for _ in range(2))
        if rng.random() < 0.03:
            return raw
        if rng.random() < 0.95:
            raw = Mutation(rng, Parts.read(raw), Parts.read(other)).run()
        return raw if rng.random() < 0.85 else mutate_bytes(rng, raw)

    def sound_file(self, rng: Random) -> bytes:
        """Return a random sound file."""
        return rng.choice(self.seeds).read_bytes()

    def use(self, data: bytes) -> None:
        """Open a file, some with --quantize and --kv, and generate text."""
        rng = Random(crc32(data))
        use_model(
            self.write_file(".gguf", data), threads=rng.choice((1, 2)), kv=rng.choice(KV),
            quantize=rng.choice((*MIXES,)) if rng.random() < 0.1 else None,
        )  # fmt: skip


class Quantise(Format):
    """Input of ``cutaway quantize``: rows of whole and of partial quant blocks, odd weights."""

    name, inputs, kernels = "quantise", 4, True

    def make(self) -> None:
        """Write llamas and a mixture with rows of 256, 512 and 288 weights."""
        for format in ("F32", "F16", "BF16"):
            for hidden, feed_forward in ((256, 512), (288, 256), (512, 96)):
                write_tiny_llama(
                    self.folder / "seeds" / f"{format}-{hidden}.gguf", format=format,
                    hidden=hidden, layers=1,
                    feed_forward=feed_forward, tied=True, head_dim=32, heads=2, kv_heads=1,
                )  # fmt: skip
        write_tiny_llama(
            self.folder / "seeds" / "mixture.gguf",
            experts=4,
            hidden=256,
            feed_forward=64,
            layers=1,
            tied=True,
        )

    def draw(self, rng: Random) -> bytes:
        """Return a file with odd weights in some tensors, sometimes with other changed parts."""
        raw = rng.choice(self.seeds).read_bytes()
        change = Mutation(rng, Parts.read(raw), Parts())
        for tensor in rng.sample(change.parts.tensors, rng.choice((0, 1, 3, 6))):
            tensor.data = _odd_weights(rng, tensor)
        return change.run() if rng.random() < 0.1 else change.parts.write()

    def use(self, data: bytes) -> None:
        """Quantise every tensor, half of the times with importance, then generate with that mix."""
        rng, path = Random(crc32(data)), self.write_file(".gguf", data)
        mix = rng.choice((*MIXES,))
        with GGUFFile(path) as file:
            importance = _importance(rng, file) if rng.random() < 0.5 else None
            with QuantisedFile(file, mix, threads=2, importance=importance) as quantised:
                for name in quantised.tensors:
                    quantised.raw(name)
        use_model(path, threads=2, quantize=mix)


def _odd_weights(rng: Random, tensor: Tensor) -> bytes:
    """Change a stretch of weights, rows or a few numbers, to zeros, equal numbers or extremes."""
    name, numbers = FORMATS_BY_ID[tensor.type_id].name, np.random.default_rng(rng.randrange(2**32))
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[name]
    weights = np.frombuffer(tensor.data, dtype).copy()
    first = rng.randrange(len(weights))
    part = slice(first, first + rng.choice((1, 16, 32, 256, 5000, len(weights))))
    size = 10.0 ** (rng.uniform(-44, 4) if rng.random() < 0.5 else rng.uniform(-3, 1))
    count = len(weights[part])
    odd = rng.choice((
        np.zeros(count), np.full(count, size), -np.full(count, size), np.linspace(0, size, count),
        size * (-1.0) ** np.arange(count), size * numbers.normal(size=count),
        size * numbers.integers(-8, 8, count), np.where(np.arange(count) % 256 == 7, size, 1e-5),
    )).astype(np.float32)  # fmt: skip
    weights[part] = odd.view(np.uint32) >> 16 if name == "BF16" else odd.astype(dtype)
    return weights.tobytes()


def _importance(rng: Random, file: GGUFFile) -> Importance:
    numbers = np.random.default_rng(rng.randrange(2**32))
    sums = {}
    for name, info in file.tensors.items():
        if len(info.shape) > 1 and np.prod(info.shape) < 1 << 20:
            stack = info.shape[0] if len(info.shape) == 3 else 1
            means = numbers.gamma(rng.choice((0.01, 1.0, 9.0)), size=(stack, info.shape[-1]))
            sums[name] = ColumnSums(means.astype(np.float32), np.ones(stack, np.float32))
    return Importance(sums, (), 1, 512)
