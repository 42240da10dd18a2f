"""WordPiece, and the byte-level BPE of RoBERTa: the tokens that the `tokenizers` library gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import FormatError
from cutaway.huggingface.settings import Settings
from cutaway.huggingface.tokens import tokenizer_metadata
from cutaway.text import Tokenizer
from support.random_models import edit
from support.tiny_tokenizers import SENTENCES, TEXTS, roberta, save, wordpiece

KINDS = {
    "uncased": wordpiece,
    "cased": lambda: wordpiece(lowercase=False),
    "accents": lambda: wordpiece(strip_accents=False),
    "as-it-is": lambda: wordpiece(
        lowercase=False, strip_accents=True, handle_chinese_chars=False, clean_text=False
    ),
    "roberta": roberta,
}
WORDS = [
    *("[MASK]", "[SEP]", "<mask>", " <mask>", "\t\n<mask> ", "[UNK]", "##ing", "▁", "ÀÉ", "日本語"),
    *(" ", "  ", "\n", "\0", "\ufffd", "\u00ad", "x" * 101, "don't", "3.14", "e\u0301"),
    *" ".join([*TEXTS, *SENTENCES]).split(),
]
SOUP = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | SOUP


def read(folder):
    config = Settings({}, "config.json")
    return tokenizer_metadata(folder, config, 400, sees_all=True)


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = KINDS[request.param]()
    save(theirs, folder)
    return theirs, Tokenizer.from_gguf(read(folder))


@settings(max_examples=500, deadline=None)
@given(text=ANY)
def test_tokens_are_those_of_the_library(both, text):
    theirs, ours = both
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=True, add_bos=False) == wanted


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
        config = Settings({"mask_token_id": token_id}, "config.json")
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
        value = Settings.read(tmp_path / "tokenizer.json").get("model") | value
    edit(tmp_path / "tokenizer.json", **{place: value})
    with pytest.raises(FormatError, match=sentence):
        Tokenizer.from_gguf(read(tmp_path))


def test_a_model_that_writes_may_not_end_its_prompts(tmp_path):
    save(roberta(), tmp_path)
    with pytest.raises(FormatError, match="a prompt would be ended before it is answered"):
        tokenizer_metadata(tmp_path, Settings({}, "config.json"), 400)
