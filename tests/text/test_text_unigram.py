"""Unigram tokenizers: the tokens that the `tokenizers` library gives, and llama.cpp's rules."""

import io
import json
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokens import tokenizer_metadata
from cutaway.text import Tokenizer
from support.many_scripts import lines

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}


@pytest.fixture(scope="session")
def trained():
    """SentencePiece's own training: pieces with scores, and its map of characters (nmt_nfkc)."""
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="needs sentencepiece: pip install '.[test-transformers]'"
    )
    from sentencepiece import sentencepiece_model_pb2 as proto

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([one for one in lines(3000, seed=9) if "\0" not in one]),
        model_writer=out, vocab_size=3000, character_coverage=0.99, num_threads=2,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = proto.ModelProto.FromString(out.getvalue())
    pieces = [[one.piece, one.score] for one in model.pieces if one.type == 1]
    charsmap = model.normalizer_spec.precompiled_charsmap
    return pieces, b64encode(charsmap).decode()


def document(pieces, charsmap, pre_tokenizer, *, byte_fallback=False, normalizers=()):
    """tokenizer.json, as XLM-RoBERTa's is; charsmap None: without."""
    first = [*([text, 0.0] for text in SPECIALS)]
    mapped = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] * (charsmap is not None)
    bytes_ = [[f"<0x{i:02X}>", -20.0] for i in range(256)] if byte_fallback else []
    vocab = [*first, *pieces, *bytes_, ["<mask>", 0.0]]
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
            "single": [frame[0], {"Sequence": {"id": "A", "type_id": 0}}, frame[1]],
            "pair": [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")],
            "special_tokens": {
                name: {"id": name, "ids": [i], "tokens": [name]}
                for i, name in ((0, "<s>"), (2, "</s>"))
            },
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": byte_fallback},
    }  # fmt: skip


KINDS = {
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
        "pre_tokenizer": METASPACE,
        "normalizers": [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    },
}  # fmt: skip


def opened(made, folder):
    (folder / "tokenizer.json").write_text(json.dumps(made))
    size = len(made["model"]["vocab"])
    return tokenizer_metadata(folder, JsonObject({}, "config.json"), size + 2, sees_all=True)


@pytest.fixture(scope="session", params=KINDS)
def both(request, trained, tmp_path_factory):
    made = document(*trained, **KINDS[request.param])
    metadata = opened(made, tmp_path_factory.mktemp("unigram"))
    return Library.from_str(json.dumps(made)), Tokenizer.from_gguf(metadata)


def same(both, text):
    theirs, ours = both
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=True, add_bos=False) == wanted, repr(text)


def test_tokens_are_those_of_the_library(both):
    for text in lines(600):
        same(both, text)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        | st.sampled_from(["<mask>", "</s>", " ", "  ", "▁", "<unk>", "<0x41>", "é"]),
        max_size=8,
    ).map("".join)
)
def test_any_text_has_the_library_s_tokens(both, text):
    same(both, text)


@pytest.mark.slow
def test_a_hundred_thousand_lines_of_many_scripts(both):
    for text in lines(100_000 // len(KINDS), seed=len(both[0].get_vocab())):
        same(both, text)


def test_texts_are_framed_and_special_tokens_are_no_text(both):
    theirs, ours = both
    text = "der Hund <s> läuft"
    assert ours.encode(text, special=True) == theirs.encode(text).ids
    assert not {0, 1, 2, 3} & {*ours.encode("abc</s>abc", add_bos=False)} - {3}
    assert ours.encode("abc</s>abc")[-1] == 2
    assert ours.encode("abc </s>")[1:-1] == ours.encode("abc </s>", add_bos=False)


def test_texts_come_back(both):
    _, ours = both
    text = "abba cafe"
    assert ours.decode(ours.encode(text, add_bos=False)) == text
    assert ours.encode(text, goes_on=True)[0] != ours.encode(text, add_bos=False)[0]


def test_llama_cpp_s_fields_alone(trained, tmp_path):
    """Without the library's steps: spaces are merged and one is put before each word."""
    made = document(*trained, SPLIT)
    metadata = {k: v for k, v in opened(made, tmp_path).items() if not k.startswith("cutaway.u")}
    ours = Tokenizer.from_gguf(metadata)
    theirs = Library.from_str(json.dumps(made))
    for text in lines(400, seed=4):
        if not {"\u200b", "\u200d", "\ufeff"} & {*text}:  # which are spaces to one of the two
            wanted = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_bos=False) == wanted, repr(text)


def by_definition(text, scores):
    """The best sum over all cuts."""
    best = {0: (0.0, [])}
    for end in range(1, len(text) + 1):
        ways = [
            (best[start][0] + scores[text[start:end]], [*best[start][1], text[start:end]])
            for start in range(end)
            if start in best and text[start:end] in scores
        ]
        if ways:
            best[end] = max(ways, key=lambda one: one[0])
    return best[len(text)]


@given(
    st.text("ab", min_size=1, max_size=12),
    st.dictionaries(st.text("ab", min_size=2, max_size=4), st.integers(-9, -1), max_size=9),
)
def test_the_cut_is_the_best_of_all(text, more):
    scores = {"a": -5, "b": -6, **more}
    vocabulary = ["<unk>", *scores]
    metadata = {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.scores": np.array([0.0, *scores.values()], np.float32),
        "tokenizer.ggml.token_type": np.array([2, *[1] * len(scores)], np.int32),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_eos_token": False,
    }  # fmt: skip
    ids = Tokenizer.from_gguf(metadata).encode(text)
    found = [vocabulary[i] for i in ids]
    assert "".join(found) == text
    assert sum(scores[one] for one in found) == by_definition(text, scores)[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vocab": {"a": 1}}, r"vocab is .* a list of pieces, each with its score"),
        ({"vocab": [["a", 0.0], ["a", 0.0]]}, "a list of pieces that differ from each other"),
        ({"unk_id": None}, "unk_id is .* the id of a piece, 0 to"),
        ({"unk_id": 10**9}, "unk_id is .* the id of a piece, 0 to"),
    ],
)
def test_a_damaged_model_is_refused_by_field(tmp_path, change, sentence):
    made = document([["▁a", -1.0]], None, METASPACE)
    made["model"] |= change
    with pytest.raises(FormatError, match=sentence):
        opened(made, tmp_path)


@pytest.mark.parametrize(
    ("charsmap", "step", "sentence"),
    [
        (None, {"type": "Magic"}, "the tokenizer's normalizer or pre_tokenizer: "),
        ("", METASPACE, "precompiled_charsmap is damaged"),
        ("AAA", METASPACE, "precompiled_charsmap: "),
        (b64encode(bytes([255] * 4000)).decode(), METASPACE, "precompiled_charsmap is damaged"),
    ],
)
def test_a_damaged_step_is_refused(tmp_path, charsmap, step, sentence):
    made = document([["▁a", -1.0]], charsmap, step)
    with pytest.raises(FormatError, match=sentence):
        Tokenizer.from_gguf(opened(made, tmp_path))
