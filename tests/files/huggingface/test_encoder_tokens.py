"""WordPiece, and the byte-level BPE of RoBERTa: the tokens that the `tokenizers` library gives."""

import json
import re
from unicodedata import normalize

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC

from cutaway.errors import FormatError
from cutaway.files.huggingface import parts
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import Tokenizer
from support.examples import few_or_many
from support.random_models import edit
from support.tiny_tokenizers import (
    SENTENCES,
    TEXTS,
    byte_level,
    modern_bert,
    roberta,
    save,
    wordpiece,
)

KINDS = {
    "uncased": wordpiece,
    "cased": lambda: wordpiece(lowercase=False),
    "accents": lambda: wordpiece(strip_accents=False),
    "as-it-is": lambda: wordpiece(
        lowercase=False, strip_accents=True, handle_chinese_chars=False, clean_text=False
    ),
    "roberta": roberta,
    "modernbert": modern_bert,
}
WORDS = [
    *("[MASK]", "[SEP]", "<mask>", " <mask>", "\t\n<mask> ", "[UNK]", "##ing", "▁", "ÀÉ", "日本語"),
    *(" ", "  ", "\n", "\0", "\ufffd", "\u00ad", "x" * 101, "don't", "3.14", "e\u0301"),
    *" ".join([*TEXTS, *SENTENCES]).split(),
]
SOUP = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | SOUP


def read(folder, model_type=None):
    config = JsonObject({"model_type": model_type}, "config.json")
    return tokenizer_metadata(folder, config, 400, sees_all=True)


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = KINDS[request.param]()
    save(theirs, folder)
    return theirs, Tokenizer.from_gguf(read(folder))


@few_or_many(80, 500, ANY)
def test_tokens_are_those_of_the_library(both, text):
    theirs, ours = both
    if isinstance(theirs.normalizer, NFC):  # here texts keep their bytes
        assume(normalize("NFC", text) == text)
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=True, add_bos=False) == wanted


@given(text=ANY, most=st.integers(0, 12))
def test_so_many_tokens_are_the_first_of_all(both, text, most):
    """In windows of a few characters, too, where words are cut in windows."""
    _, ours = both
    wanted = ours.encode(text, add_bos=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutaway.text.tokenizers.wordpiece._WINDOW", re.compile("(?s).{1,3}[^ ]*"))
        assert ours.encode(text, add_bos=False) == wanted
        assert ours.encode(text, add_bos=False, most=most) == wanted[:most]


@pytest.mark.parametrize("text", [*TEXTS, *SENTENCES])
def test_texts_have_the_library_s_tokens_around_them(both, text):
    theirs, ours = both
    assert ours.encode(text) == theirs.encode(text).ids
    first, last = ours.bos_id, ours.sep_id
    assert ours.encode(text)[0] == first
    assert ours.encode(text)[-1] == last
    framed = ours.token_name(first) + text + ours.token_name(last)
    assert ours.encode(framed, special=True) == ours.encode(text)  # and none twice
    assert ours.encode(text, goes_on=True) == ours.encode(text)[1:-1]


def test_the_mask_is_known_and_eats_the_space_before_it_where_it_says_so(both):
    theirs, ours = both
    name = "<mask>" if theirs.token_to_id("<mask>") else "[MASK]"
    assert ours.mask_id == theirs.token_to_id(name)
    spaced, close = (ours.encode(text, special=True) for text in (f"the \n{name}", f"the{name}"))
    assert spaced == close


def test_a_mask_that_only_the_config_names(tmp_path):
    save(roberta(), tmp_path)

    def mask(token_id):
        config = JsonObject({"mask_token_id": token_id}, "config.json")
        metadata = tokenizer_metadata(tmp_path, config, 400, sees_all=True)
        return Tokenizer.from_gguf(metadata).mask_id

    assert mask(17) == 17
    with pytest.raises(FormatError, match="mask_token_id is 400; it must be ids of tokens"):
        mask(400)


@settings(deadline=None)
@given(text=st.text(max_size=300))
def test_a_text_is_never_said_to_have_more_tokens_than_it_has(both, text):
    _, ours = both
    ids = ours.encode(text.encode("utf-8", "replace").decode(), add_bos=False)
    assert ours.min_tokens(text) <= len(ids)


def test_a_mask_that_the_model_has_no_row_for_is_none(tmp_path):
    made = roberta()
    save(made, tmp_path)
    rows = made.token_to_id("<mask>")
    metadata = tokenizer_metadata(tmp_path, JsonObject({}, "config.json"), rows, sees_all=True)
    assert Tokenizer.from_gguf(metadata).mask_id is None


def test_a_word_and_its_parts_are_stored_as_gguf_has_them(tmp_path):
    save(wordpiece(), tmp_path)
    metadata = read(tmp_path)
    assert metadata["tokenizer.ggml.model"] == "bert"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokens[4] == "[MASK]"
    assert "▁the" in tokens
    assert not any(token.startswith("##") for token in tokens)
    ours = Tokenizer.from_gguf(metadata)
    ids = ours.encode("Foxes JUMP over")
    assert ours.decode(ids) == "foxes jump over"


def test_a_part_of_a_word_that_looks_as_the_mark_of_spaces_is_one(tmp_path):
    made = wordpiece(texts=["a▁", "▁ b▁"])
    save(made, tmp_path)
    assert made.token_to_id("##▁") is not None
    ours = Tokenizer.from_gguf(read(tmp_path))
    ids = ours.encode("b▁ ▁", add_bos=False)
    assert ids == made.encode("b▁ ▁", add_special_tokens=False).ids
    assert ours.decode(ids) == "b▁ ▁"


def test_a_gguf_file_that_says_no_more_is_read_as_bert_uncased(tmp_path):
    save(wordpiece(), tmp_path)
    whole = read(tmp_path)
    less = {key: value for key, value in whole.items() if not key.startswith("cutaway.wordpiece")}
    text = "Über THE quick 日本"
    assert Tokenizer.from_gguf(less).encode(text) == Tokenizer.from_gguf(whole).encode(text)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("normalizer", None, "not supported for WordPiece"),
        ("pre_tokenizer", {"type": "Whitespace"}, "not supported for WordPiece"),
        ("model", {"continuing_subword_prefix": "@@"}, "continuing_subword_prefix"),
        ("model", {"max_input_chars_per_word": 7}, "max_input_chars_per_word"),
        ("model", {"unk_token": "nowhere"}, "unknown_token_id is missing"),
    ],
)
def test_other_ways_are_refused(tmp_path, place, value, sentence):
    save(wordpiece(), tmp_path)
    if place == "model":
        value = JsonObject.read(tmp_path / "tokenizer.json").get("model") | value
    edit(tmp_path / "tokenizer.json", **{place: value})
    with pytest.raises(FormatError, match=sentence):
        Tokenizer.from_gguf(read(tmp_path))


def test_a_model_that_writes_may_not_end_its_prompts(tmp_path):
    save(roberta(), tmp_path)
    with pytest.raises(FormatError, match="a prompt would be ended before it is answered"):
        tokenizer_metadata(tmp_path, JsonObject({}, "config.json"), 400)


# -- folders from before tokenizer.json ----------------------------------------------------------


def write_lists(folder, made):
    """As transformers wrote them: the tokens of BERT line by line, RoBERTa's and their merges."""
    model = json.loads(made.to_str())["model"]
    vocab = made.get_vocab()
    if model["type"] == "WordPiece":
        words = sorted(vocab, key=vocab.get)
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
        return "bert"
    (folder / "vocab.json").write_text(json.dumps(vocab))
    merges = (" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return "roberta"


LISTED = {name: KINDS[name] for name in ("uncased", "cased", "accents", "roberta")}


@pytest.fixture(scope="module", params=LISTED)
def listed(request, tmp_path_factory):
    """transformers' own tokenizer of such a folder, and ours."""
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    folder = tmp_path_factory.mktemp(f"listed-{request.param}")
    kind = write_lists(folder, LISTED[request.param]())
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "special": True}
    said = {
        "cased": {"do_lower_case": False}, "accents": {"strip_accents": False},
        "roberta": {"mask_token": mask},
    }  # fmt: skip
    edit(folder / "tokenizer_config.json", **said.get(request.param, {}))
    theirs = getattr(transformers, {"bert": "BertTokenizer", "roberta": "RobertaTokenizer"}[kind])
    return theirs.from_pretrained(folder), Tokenizer.from_gguf(read(folder, kind))


@settings(max_examples=200, deadline=None)
@given(text=SOUP)
def test_tokens_of_lists_are_those_of_transformers(listed, text):
    theirs, ours = listed
    wanted = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text, special=True, add_bos=False) == wanted


def test_lists_have_tokens_around_a_text(listed):
    theirs, ours = listed
    assert ours.encode("a cup of") == theirs.encode("a cup of")
    assert ours.mask_id == theirs.mask_token_id


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "tokenizer_class is 'BertJ",
        ),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False"),
        ({"never_split": ["x"]}, "never_split"),
        ({"cls_token": "nowhere"}, "vocab.txt: post_processor names 'nowhere', no token"),
        ({"cls_token": 5}, "cls_token is 5; it must be the text of a token"),
        (
            {"added_tokens_decoder": {"9": {"content": "<x>"}}},
            "the token '<x>' was added, which is supported only with a tokenizer.json",
        ),
        (None, "do_lower_case is missing; it must be true or false, since vocab.txt has words"),
    ],
)
def test_what_lists_do_not_say_is_refused(tmp_path, said, sentence):
    write_lists(tmp_path, wordpiece(lowercase=False))
    edit(tmp_path / "tokenizer_config.json", **({} if said is None else {"do_lower_case": False}))
    edit(tmp_path / "tokenizer_config.json", **(said or {}))
    with pytest.raises(FormatError, match=re.escape(sentence)):
        read(tmp_path, "bert")


TURNS = ["<|turn|>", "<|mask|>"]


def write_qwen(folder):
    """As Qwen's folders are, and those of Dream, which have no tokenizer.json."""
    write_lists(folder, byte_level("qwen2", 384, []))
    vocab = json.loads((folder / "vocab.json").read_text())
    del vocab["<both>"]  # which the library counts as one of the vocabulary
    (folder / "vocab.json").write_text(json.dumps(vocab))
    first = len(vocab)
    tokens = {str(first + i): {"content": text, "special": True} for i, text in enumerate(TURNS)}
    tokens[str(first + 2)] = {"content": "<both>", "special": False}
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder=tokens,
        mask_token="<|mask|>",
        eos_token="<|turn|>",
    )
    return first


def test_lists_of_qwen_s_kind_have_its_tokens(tmp_path):
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    first = write_qwen(tmp_path)
    theirs = transformers.Qwen2Tokenizer.from_pretrained(tmp_path)
    edit(tmp_path / "tokenizer_config.json", tokenizer_class="DreamTokenizer")
    ours = Tokenizer.from_gguf(read(tmp_path, "Dream"))
    for text in [*TEXTS, *SENTENCES, "a<|turn|>b <both> <|mask|> \n\n12345"]:
        assert ours.encode(text, special=True) == theirs.encode(text)
    assert (ours.mask_id, {*ours.end_ids}) == (first + 1, {first})


def test_added_tokens_of_qwen_s_kind_must_all_be_known(tmp_path):
    write_qwen(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<|more|>": 390}')
    with pytest.raises(FormatError, match=r"added_tokens_decoder .* has the token '<.more.>', too"):
        read(tmp_path, "Dream")
    (tmp_path / "added_tokens.json").unlink()
    edit(tmp_path / "tokenizer_config.json", added_tokens_decoder={"x": {"content": "y"}})
    with pytest.raises(FormatError, match="an object of tokens by their ids"):
        read(tmp_path, "Dream")


def test_lists_of_other_families_are_not_taken_for_these(tmp_path):
    write_lists(tmp_path, roberta())
    with pytest.raises(FormatError, match=r"has no tokenizer\.json"):
        read(tmp_path, "gpt2")


@pytest.mark.parametrize("content", [b"\xff\n", b""])
def test_a_list_that_is_none(tmp_path, content):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(FormatError, match=r"no UTF-8 text|vocab is missing|object of tokens"):
        read(tmp_path, "bert")


def test_a_folder_s_lists_are_part_of_it_where_they_are_read(tmp_path):
    write_lists(tmp_path, wordpiece())
    names = lambda: [path.name for path in parts(tmp_path)]  # noqa: E731
    (tmp_path / "model.safetensors").touch()
    assert names() == ["model.safetensors", "vocab.txt"]
    save(wordpiece(), tmp_path)
    assert names() == ["model.safetensors", "tokenizer.json"]
