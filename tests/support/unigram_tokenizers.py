"""tokenizer.json with a Unigram model, as in XLM-RoBERTa's, ALBERT's and DeBERTa's folders.

Pieces, scores and the map of characters are those of SentencePiece's own training.
"""

import io
from base64 import b64encode
from importlib import import_module
from typing import Any

from support.many_scripts import lines

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}


def train(size: int = 3000) -> tuple[list[list[Any]], str]:
    """Train (pieces with scores, map of characters (nmt_nfkc)); needs the package sentencepiece."""
    sentencepiece = import_module("sentencepiece")
    proto = import_module("sentencepiece.sentencepiece_model_pb2")
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines(3000, seed=9) if "\0" not in line]),
        model_writer=out, vocab_size=size, character_coverage=0.99, num_threads=2,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = proto.ModelProto.FromString(out.getvalue())
    pieces = [[line.piece, line.score] for line in model.pieces if line.type == 1]
    charsmap = model.normalizer_spec.precompiled_charsmap
    return pieces, b64encode(charsmap).decode()


def document(
    pieces: list[list[Any]], charsmap: str | None, pre_tokenizer: Any,
    *, byte_fallback: bool = False, normalizers: Any = (),
) -> dict[str, Any]:  # fmt: skip
    """Return a tokenizer.json like XLM-RoBERTa's. charsmap None: without a map of characters."""
    first = [*([text, 0.0] for text in SPECIALS)]
    mapped = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] * (charsmap is not None)
    bytes_ = [[f"<0x{i:02X}>", -20.0] for i in range(256)] if byte_fallback else []
    vocab = [*first, *pieces, *bytes_, ["<mask>", 0.0]]
    first_text, second_text = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
    frame = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>")]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {
                "id": [text for text, _ in vocab].index(name), "content": name, "special": True,
                "single_word": False, "lstrip": name == "<mask>", "rstrip": False,
                "normalized": False,
            }
            for name in (*SPECIALS, "<mask>")
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, *mapped]},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [frame[0], first_text, frame[1]],
            "pair": [frame[0], first_text, frame[1], frame[1], second_text, frame[1]],
            "special_tokens": {
                name: {"id": name, "ids": [i], "tokens": [name]}
                for i, name in ((0, "<s>"), (2, "</s>"))
            },
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": byte_fallback},
    }  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "xlm-roberta": {"pre_tokenizer": SPLIT},
    "bge-m3": {"pre_tokenizer": METASPACE},
    "first": {"pre_tokenizer": METASPACE | {"prepend_scheme": "first"}},
    "unsplit": {"pre_tokenizer": METASPACE | {"split": False}, "byte_fallback": True},
    "albert": {
        "pre_tokenizer": SPLIT,
        "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        ],
    },
    "deberta": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [METASPACE]},
        "normalizers": [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    },
}  # fmt: skip
