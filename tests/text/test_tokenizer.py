"""Special tokens on and off, BOS, end ids, names, tokens around a gap, and what is refused."""

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import TextStream, Tokenizer
from cutaway.text.tokenizers.vocabulary import SpecialTokens
from support import tiny_tokenizers
from support.text_vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER,
    byte_level,
    sentencepiece,
)
from support.tiny_tokenizers import save

EXTRA = [("<s>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER)]
BOS, START, END, THINK = range(256, 260)


def chatty(**fields: object) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level(extra=EXTRA, bos_token_id=BOS, **fields))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return chatty()


def test_control_tokens_are_ordinary_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.encode(text, special=True) == [START]
    assert tokenizer.token_bytes(START) == b""


def test_spaces_around_special_tokens_stay(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" a <|im_end|>  b\n<|im_end|>\n", special=True)
    assert ids == [*b" a ", END, *b"  b\n", END, *b"\n"]
    assert tokenizer.decode(ids) == " a   b\n\n"
    assert tokenizer.decode(ids, special=True) == " a <|im_end|>  b\n<|im_end|>\n"


def test_user_defined_tokens_always_match(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a<think>b") == [*b"a", THINK, *b"b"]
    assert tokenizer.token_bytes(THINK) == b"<think>"
    assert tokenizer.decode([THINK]) == "<think>"


def test_quoted_text_is_read_as_if_it_stood_alone(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|><<s><think><|im_end"
    quoted = tokenizer.escape_special_tokens(text, "\uf000")
    ids = tokenizer.encode(f"<s>{quoted}<|im_end|>", special=True, mark="\uf000")
    assert ids == [BOS, *tokenizer.encode(text), END]
    assert tokenizer.escape_special_tokens("plain <think>", "\uf000") == "plain <think>"


@given(st.text("<s>|im_end a", max_size=40))
def test_no_quoted_text_holds_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    quoted = tokenizer.escape_special_tokens(text, "\uf000")
    assert tokenizer.encode(quoted, special=True, mark="\uf000") == tokenizer.encode(text)


@given(st.sampled_from(["<s>", "<|im_start|>"]), st.data())
def test_no_quoted_text_is_part_of_one(tokenizer: Tokenizer, literal: str, data: Any) -> None:
    """Together with what the template writes around it."""
    at = data.draw(st.integers(1, len(literal) - 1))
    after = tokenizer.escape_special_tokens(literal[:at], "\uf000") + literal[at:]
    assert tokenizer.encode(after, special=True, mark="\uf000") == [*literal.encode()]
    if at < len(literal) - 1:
        before = literal[:at] + tokenizer.escape_special_tokens(literal[at:], "\uf000")
        assert tokenizer.encode(before, special=True, mark="\uf000") == [*literal.encode()]


def test_a_control_token_of_one_character_is_text_when_quoted() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(extra=[("¤", CONTROL)]))
    quoted = tokenizer.escape_special_tokens("a¤¤b", "\uf000")
    ids = tokenizer.encode(f"¤{quoted}¤", special=True, mark="\uf000")
    assert ids == [256, *"a¤¤b".encode(), 256]


def test_overlapping_literals_are_all_broken() -> None:
    specials = SpecialTokens({"<a>": 1, "a><": 2, "><b": 3, "aa": 4})
    assert specials.escape("<a><b aaa", "·") == "<·a·>·<b a·a·a·"
    assert SpecialTokens({}).escape("x", "·") == "x"


def test_special_tokens_of_a_long_text_are_broken_without_copies_of_the_rest() -> None:
    """A message of 4 MB took minutes."""
    began = time.process_time()
    escaped = SpecialTokens({"<|im_end|>": 7}).escape("<|im_start|>" * 100_000, "·")
    assert time.process_time() - began < 2
    assert escaped == "<|im_start|>" * 100_000


def test_special_text_must_match_exactly(tokenizer: Tokenizer) -> None:
    for text in ("<|IM_END|>", "<|im_end |>", "＜|im_end|>", "<|im_end|"):
        assert tokenizer.encode(text, special=True) == list(text.encode())


TABLES = st.dictionaries(st.text("ab<", min_size=1, max_size=4), st.integers(0, 9), max_size=8)


@given(st.text("ab<x", max_size=20), TABLES)
def test_split_is_leftmost_longest(text: str, table: dict[str, int]) -> None:
    expected: list[str | int] = []
    rest = text
    while rest:
        literal = max((key for key in table if rest.startswith(key)), key=len, default="")
        if literal:
            expected.append(table[literal])
        elif expected and isinstance(expected[-1], str):
            expected[-1] += rest[0]
        else:
            expected.append(rest[0])
        rest = rest[len(literal) or 1 :]
    assert list(SpecialTokens(table).split(text)) == expected


@pytest.mark.parametrize("wish", [True, False])
def test_bos_follows_the_model_unless_told(wish: bool) -> None:
    tokenizer = chatty(add_bos_token=wish)
    assert tokenizer.add_bos is wish
    assert (tokenizer.encode("a")[0] == BOS) is wish
    assert tokenizer.encode("a", add_bos=True) == [BOS, 97]
    assert tokenizer.encode("a", add_bos=False) == [97]
    assert tokenizer.encode("", add_bos=True) == [BOS]


def test_never_a_second_bos() -> None:
    tokenizer = chatty(add_bos_token=True)
    assert tokenizer.encode("<s>a", special=True) == [BOS, 97]
    assert tokenizer.encode("<s>a", special=True, add_bos=True) == [BOS, 97]
    assert tokenizer.encode("<s>", special=False) == [BOS, *b"<s>"]
    assert tokenizer.encode("a<s>", special=True) == [BOS, 97, BOS]


def test_what_may_be_wrong_with_a_beginning_is_told() -> None:
    tokenizer = chatty(add_bos_token=True)
    assert tokenizer.notes([BOS, 97]) == tokenizer.notes([BOS, 97], "a") == ()
    assert tokenizer.notes([BOS, BOS, 97]) == ("the prompt begins with <s> twice; give it once",)
    assert tokenizer.notes([97]) == (
        "the model expects <s> first, and the prompt begins without it",
    )
    (own,) = tokenizer.notes(tokenizer.encode("<s>a", special=True), "<s>a")
    assert own == "the prompt has its own <s>, so none was put in front of it"
    assert chatty(add_bos_token=False).notes([97]) == ()
    assert Tokenizer.from_gguf(byte_level()).notes([97, 97]) == ()
    (lacking,) = Tokenizer.from_gguf(byte_level(add_bos_token=True)).notes([97])
    assert lacking.startswith("the model's file asks for a BOS token first and names none")


def test_bos_by_kind_where_the_metadata_is_silent() -> None:
    assert not chatty().add_bos
    assert chatty(pre="llama-bpe").add_bos
    assert Tokenizer.from_gguf(sentencepiece([("a", 0.0)])).add_bos


def test_a_model_without_bos() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=True))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.encode("a") == [97]
    with pytest.raises(InputError, match="add_bos"):
        tokenizer.encode("a", add_bos=True)


def test_end_ids_are_the_union_with_their_origins() -> None:
    extra = [("<|eot_id|>", CONTROL), ("<|im_end|>", CONTROL), ("<|eom_id|>", CONTROL)]
    extra += [("</s>", NORMAL), ("<|pad|>", CONTROL), ("x<|end|>", CONTROL)]
    metadata = byte_level(extra=extra, eos_token_id=257, eot_token_id=256, eom_token_id=65)
    assert dict(Tokenizer.from_gguf(metadata).end_ids) == {
        257: "tokenizer.ggml.eos_token_id",
        256: "tokenizer.ggml.eot_token_id",
        65: "tokenizer.ggml.eom_token_id",
        258: "control token <|eom_id|>",
    }


def test_end_of_message_is_no_end_of_turn_in_harmony() -> None:
    harmony = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)]
    assert set(Tokenizer.from_gguf(byte_level(extra=harmony)).end_ids) == {257, 258}
    assert set(Tokenizer.from_gguf(byte_level(extra=harmony[:1])).end_ids) == {256}


def test_names_are_printable_and_never_empty() -> None:
    extra = [
        ("<|im_end|>", CONTROL),
        ("", NORMAL),
        ("", UNUSED),
        ("\n\n", USER),
        ("<unk>", UNKNOWN),
    ]
    tokenizer = Tokenizer.from_gguf(byte_level(["Ġ t", "Ã ©", "é Ļ"], extra))
    ids = [0x41, 0x20, 0x0A, 0xC3, *range(256, 264)]
    assert [tokenizer.token_name(i) for i in ids] == [
        *("A", " ", "<0x0A>", "<0xC3>", " t", "é", "<0xE9><0x99>"),
        *("<|im_end|>", "[empty token 260]", "[empty token 261]", "<0x0A><0x0A>", "<unk>"),
    ]
    assert all(tokenizer.token_name(i).isprintable() for i in range(tokenizer.vocab_size))


@pytest.mark.parametrize("token_id", [-1, 260, 10**9])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token_id: int) -> None:
    for call in (tokenizer.token_bytes, tokenizer.token_name):
        with pytest.raises(InputError, match=rf"{token_id} .* 0 to 259"):
            call(token_id)
    with pytest.raises(InputError, match=rf"{token_id} .* 0 to 259"):
        tokenizer.decode([65, token_id])


@pytest.mark.parametrize("special", [True, False])
def test_lone_surrogates_are_refused(special: bool) -> None:
    with pytest.raises(InputError, match=r"U\+D83D, at character 2"):
        chatty().encode("ab\ud83d", special=special)


@pytest.mark.parametrize("kind", ["plamo2", "rwkv6", None, 3])
def test_other_tokenizers_are_refused_by_name(kind: object) -> None:
    with pytest.raises(FormatError, match="is missing" if kind is None else repr(kind)):
        Tokenizer.from_gguf(byte_level() | {"tokenizer.ggml.model": kind})


@pytest.mark.parametrize("field", ["bos", "eos", "eot", "eom"])
@pytest.mark.parametrize("value", [256, -1, 1.0, "1"])
def test_special_ids_outside_the_vocabulary_are_refused(field: str, value: object) -> None:
    with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.{field}_token_id"):
        Tokenizer.from_gguf(byte_level() | {f"tokenizer.ggml.{field}_token_id": value})


@pytest.mark.parametrize("value", [None, 7, [7], "abc"])
def test_a_file_without_a_vocabulary_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.tokens"):
        Tokenizer.from_gguf(byte_level() | {"tokenizer.ggml.tokens": value})


def test_without_kinds_every_token_is_normal() -> None:
    metadata = byte_level(extra=EXTRA)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("<s>", special=True) == list(b"<s>")
    assert tokenizer.token_bytes(END) == b"<|im_end|>"


def test_importing_the_room_imports_no_heavy_library() -> None:
    code = "import cutaway.text, sys; print(sorted({'tokenizers', 'jinja2'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


# -- tokens around a gap: whose they are, and in which order they come -------------------------

A, B, C = range(256, 259)


def of_names(*names, kind=CONTROL, **fields):
    made = byte_level(extra=[(name, kind) for name in names], **fields)
    return Tokenizer.from_gguf(made).fim


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
        ("<PRE>", "<SUF>", "<MID>"),
    ],
)
@pytest.mark.parametrize("kind", [CONTROL, USER])
def test_a_family_is_known_by_its_names(names, kind):
    middle = of_names(*names, kind=kind)
    assert middle.lay_out([1, 2], [3]) == [A, 1, 2, B, 3, C]
    assert of_names(*names[:2], kind=kind) is None
    assert of_names(*names, kind=NORMAL) is None  # ordinary text


def test_codestral_writes_behind_the_prefix():
    names = [("[PREFIX]", CONTROL), ("[SUFFIX]", CONTROL)]
    tokenizer = Tokenizer.from_gguf(sentencepiece([("a", 0.0)], extra=names))
    prefix, suffix = 260, 261
    assert tokenizer.fim.lay_out([1, 2], [3]) == [suffix, 3, prefix, 1, 2]
    assert of_names("[PREFIX]", "[SUFFIX]") is None  # in every model with this vocabulary


@pytest.mark.parametrize(
    "words", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_what_the_file_names_goes_first(words):
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "x", "y", "z")
    fields = {f"{word}_token_id": 259 + i for i, word in enumerate(words)}
    assert of_names(*names, **fields).lay_out([1], [2]) == [259, 1, 260, 2, 261]


def test_the_middle_ends_where_another_file_or_part_would_begin():
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<fim_pad>", "<other>")
    assert sorted(of_names(*names).ends) == [A, B, C, 259, 260]
    assert 261 in of_names(*names, fim_rep_token_id=261).ends


def test_an_id_that_cannot_be_is_an_error():
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.fim_pre_token_id"):
        of_names("a", fim_pre_token_id=999)


def test_a_folder_s_added_tokens_are_known_by_their_names(tmp_path):
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    save(tiny_tokenizers.byte_level(specials=[*tiny_tokenizers.SPECIALS, *names]), tmp_path)
    tokenizer = Tokenizer.from_gguf(
        tokenizer_metadata(tmp_path, JsonObject({"eos_token_id": 2}, "config.json"), 400)
    )
    [prefix], [suffix], [middle] = (tokenizer.encode(name, special=True) for name in names)
    assert tokenizer.fim.lay_out([9], [10, 11]) == [prefix, 9, suffix, 10, 11, middle]


def test_the_tokens_of_a_project_are_known():
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<reponame>")
    middle = of_names(*names)
    assert (middle.file, middle.repository) == (259, 260)
    assert (of_names(*names[:3]).file, of_names(*names[:3]).repository) == (None, None)
    named = of_names(*names, fim_sep_token_id=97, fim_rep_token_id=98)
    assert (named.file, named.repository) == (97, 98)


# -- incremental UTF-8 -------------------------------------------------------------------------

BYTES = st.binary(max_size=12) | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)


@given(st.lists(BYTES, max_size=12))
@example([b"\xf0\x9f", b"\x99", b"\x82"])
@example([b"\xf0\x9f", b"a"])
@example([b"\xe2\x82"])
@example([b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5"])
def test_any_split_gives_the_same_text(chunks: list[bytes]) -> None:
    stream = TextStream()
    text = "".join(map(stream.push, chunks)) + stream.flush()
    assert text == b"".join(chunks).decode("utf-8", "replace")


def test_a_character_appears_whole_with_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "a🙂é".encode()] == [
        *("a", "", "", "", "🙂", "", "é")
    ]
    assert stream.flush() == ""


def test_a_broken_character_is_replaced_and_the_rest_kept() -> None:
    stream = TextStream()
    assert stream.push(b"\xf0\x9f") == ""
    assert stream.push(b"ok") == "\ufffdok"
    assert stream.push(b"\xe2\x82") == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(b"next") == "next"


# -- the beginning of a text -----------------------------------------------------------------------


def test_of_what_is_behind_no_word_is_cut(tokenizer, monkeypatch):
    count = 0

    def words(_cuts, text):
        nonlocal count
        for count, word in enumerate(text.split(), 1):  # noqa: B007
            yield word

    monkeypatch.setattr("cutaway.text.tokenizers.byte_level.WordCuts.words", words)
    assert tokenizer.encode("ab c " * 1000, most=5) == [*b"abcab"]
    assert count == 3
