"""Models of the sizes that people run, with random weights: all that a measure of speed needs.

    python bench/make_model.py SHAPE FOLDER [--formats q4_k_m,q4_0,q8_0] [--peer-python PYTHON]
        [--layers N] [--experts N]

writes FOLDER/SHAPE-FORMAT.gguf for each format, quantised by llama.cpp's own quantiser, which
PYTHON must have (llama-cpp-python); f16 needs none and is deleted again where it is not asked for.
The low-bit formats (iq4_xs, mxfp4, iq2_xxs, tq2_0 …) and q4_k are drawn as they are, without a
quantiser: random codes under ordinary scales in every matrix but the vocabulary's, which are Q6_K.
Two tensors at most are in memory at a time.

A shape has a published model's widths, layers, heads and vocabulary. The tokenizer is that of
another model (--tokenizer), extended by pairs of its words. So its tables are as long as the
shape's, and every text has the same tokens as with the other model. Matrices keep a variance of 1,
so that activations are as large as in a trained model.

--layers and --experts cut a model that is too large to so many layers, or experts of a layer, of
unchanged widths; the file's name says so (gpt-oss-20b-12l-mxfp4.gguf).

Such a model cannot show texts. Its logits are Gaussian, without a trained model's few likely
tokens. SPREAD makes their entropy a trained model's, about 4 nats, but a sampler keeps hundreds of
tokens where it would keep a few. So compare.py measures greedy, whose text repeats itself: drafts
would be accepted more often than in any real text.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cutaway.files import hub
from cutaway.files.weights import GGUFFile, ModelFile, TensorInfo
from cutaway.files.weights.gguf_writer import write_gguf
from peers.client import environment
from random_blocks import random_blocks
from script import parser_of, words
from shape_tensors import sizes_of, tensors_of
from shapes import SHAPES, Shape

LOW_BIT = (
    "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s",
    "iq1_s", "iq1_m", "tq1_0", "tq2_0", "q1_0", "q2_0", "q4_k",
)  # fmt: skip
SPREAD = 4.0  # standard deviation of the logits
QUANTISER = Path(__file__).resolve().parent / "peers" / "llama_quantize.py"
_ONES = ("norm", "ssm_d", "rope_freqs", "output_scale")  # in the names of vectors of ones
_NORMAL = 1  # a token's type
_WORD = re.compile("Ġ[a-z]+")


class RandomModel(ModelFile):
    """A model with random weights: each tensor is drawn when its bytes are read."""

    def __init__(
        self, shape: Shape, name: str, tokenizer: GGUFFile, *, format: str = "F16"
    ) -> None:
        self.path, self.shape = Path(name), shape
        self.metadata = MappingProxyType(
            dict(sizes_of(shape, name)) | dict(vocabulary(tokenizer, shape.vocab))
        )
        self.value_types = tokenizer.value_types
        self.tensors = MappingProxyType({info.name: info for info in tensors_of(shape, format)})

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`: the same bytes for the same name."""
        info = self.info(name)
        if any(one in name for one in _ONES):
            return np.ones(info.shape, np.float32).reshape(-1).view(np.uint8)
        rng = np.random.Generator(np.random.SFC64(crc32(name.encode())))
        if info.format not in ("F16", "F32"):
            return random_blocks(rng, info.format, info.shape, self._scale(info)).reshape(-1)
        if name.endswith("ssm_a"):  # decay rates: some heads keep little of their state, some much
            return (
                -np.exp(rng.uniform(-4, 2, info.shape))
                .astype(np.float32)
                .reshape(-1)
                .view(np.uint8)
            )
        drawn = np.empty(info.shape, np.float16 if info.format == "F16" else np.float32)
        scale = np.float32(self._scale(info))
        for rows in np.array_split(drawn.reshape(-1), max(1, drawn.size >> 22)):
            rows[:] = rng.standard_normal(rows.size, np.float32) * scale
        return drawn.reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Do nothing, as no file is open."""

    def _scale(self, info: TensorInfo) -> float:
        heads = "output.weight", "token_embd.weight"[: None if self.shape.tied else 0]
        spread = SPREAD if info.name in heads else 1.0
        return 0.1 if len(info.shape) == 1 else spread * info.shape[-1] ** -0.5


def vocabulary(file: GGUFFile, size: int) -> Iterator[tuple[str, Any]]:
    """Yield a tokenizer's metadata with `size` tokens: each new token merges two words.

    Texts are cut into words before any merge, so no text has a new token.
    """
    for key, value in file.metadata.items():
        if key.startswith("tokenizer."):
            yield key, value
    tokens, merges = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
    types, more = file.metadata["tokenizer.ggml.token_type"], size - len(tokens)
    words = [token for token in tokens if _WORD.fullmatch(token)][: int(max(more, 1) ** 0.5) + 1]
    pairs = [(a, b) for a in words for b in words][: max(more, 0)]
    if more < 0 or len(pairs) < more:
        raise SystemExit(f"{file.path.name} cannot be made a tokenizer of {size} tokens")
    yield "tokenizer.ggml.tokens", tokens + [a + b for a, b in pairs]
    yield "tokenizer.ggml.merges", merges + [f"{a} {b}" for a, b in pairs]
    yield "tokenizer.ggml.token_type", np.concatenate((types, np.full(more, _NORMAL, types.dtype)))


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--formats", type=words, default=["q4_k_m"], help="with commas between them"
    )
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokenizer", default="smollm2", help="the model whose tokenizer it gets")
    parser.add_argument("--layers", type=int, help="the first ones alone")
    parser.add_argument("--experts", type=int, help="so many of each layer's")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    for what, most in (("layers", shape.layers), ("experts", shape.experts[0])):
        if (asked := getattr(args, what)) is not None and not 1 <= asked <= most:
            parser.error(f"--{what}: {args.shape} has {most}, of which {asked} cannot be taken")
    if args.layers and args.shape == "gemma4-e2b":
        parser.error("--layers: gemma4-e2b's last layers read those of the others; leave it whole")
    cuts = ("l", args.layers), ("e", args.experts)
    name = args.shape + "".join(f"-{count}{what}" for what, count in cuts if count)
    used = min(shape.experts[1], args.experts or shape.experts[1])
    shape = replace(
        shape, layers=args.layers or shape.layers, experts=(args.experts or shape.experts[0], used)
    )
    with GGUFFile(hub.resolve(args.tokenizer, progress=False)) as tokenizer:
        for format in args.formats:
            if format in LOW_BIT:
                path = args.folder / f"{name}-{format}.gguf"
                write_gguf(path, RandomModel(shape, path.stem, tokenizer, format=format.upper()))
        if rest := [format for format in args.formats if format not in LOW_BIT]:
            source = args.folder / f"{name}-f16.gguf"
            _quantise(source, shape, rest, args.peer_python, tokenizer)


def _quantise(
    source: Path, shape: Shape, formats: list[str], python: str, tokenizer: GGUFFile
) -> None:
    """Write the model as F16, and let llama.cpp write the other formats from the F16 file."""
    name = source.stem.removesuffix("-f16")
    try:
        write_gguf(source, RandomModel(shape, name, tokenizer))
        for format in formats:
            if format != "f16":
                target = source.with_stem(f"{name}-{format}")
                command = [python, str(QUANTISER), str(source), str(target), format]
                subprocess.run(command, check=True, env=environment())
    finally:
        if "f16" not in formats:
            source.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
