"""RWKV's tokenizer: always the longest token that fits, in any bytes."""

import json

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import TextStream, Tokenizer
from cutaway.text.tokenizers.byte_strings import escape, unescape
from support.many_scripts import lines
from support.random_llama import write_file
from support.text_vocabularies import CONTROL, UNUSED, USER, byte_strings

LIST = "rwkv_vocab_v20230424.txt"
WORDS = [
    *(b"\n\n", b" the", b"th", b"ther", b"  ", b"'s", b"\"'", b"\\n", b"a\\", b"\xff\xfe"),
    *("é".encode(), "日本".encode(), "日本語".encode()[:8], "🎉".encode()[:3], "🎉".encode()[1:]),
]
SOUP = st.lists(st.sampled_from([*"abther'\"\\n \n", "é", "日本語", "🎉", "½"]), max_size=30)
TEXTS = SOUP.map("".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
EACH_LINE = [line for line in lines(200, seed=3) if "\0" not in line]
TOKENS = st.lists(st.binary(min_size=2, max_size=6) | TEXTS.map(str.encode), max_size=40)


def by_definition(text, strings):
    """At each place the longest string of all, found by trying them all."""
    ids = {bytes([n]): 1 + n for n in range(256)} | {s: 257 + i for i, s in enumerate(strings)}
    data, tokens = text.encode(), []
    while data:
        token = max((s for s in ids if s and data.startswith(s)), key=len)
        tokens.append(ids[token])
        data = data[len(token) :]
    return tokens


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, more=TOKENS)
def test_tokens_are_the_longest_that_fit(text, more):
    strings = [*WORDS, *more]
    tokenizer = Tokenizer.from_gguf(byte_strings(strings))
    ids = tokenizer.encode(text)
    assert ids == by_definition(text, strings)
    assert tokenizer.decode(ids) == text
    assert len(ids) >= tokenizer.min_tokens(text)


@given(token=st.binary(max_size=20))
def test_any_bytes_can_be_stored(token):
    assert unescape(escape(token)) == token
    assert escape(token).isascii()


def test_bytes_are_stored_as_llama_cpp_reads_them():
    assert escape(b"a\n\t\r'\\\xff\x00") == r"a\n\t\r'\\\xff\x00"
    assert unescape(r"\'") == b"'"
    assert unescape("é") == "é".encode()


def test_tokens_are_those_of_llama_cpp(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    metadata, path = byte_strings(WORDS), tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "rwkv7")
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"].tolist())
    write_file(writer, path)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = Tokenizer.from_gguf(metadata)
    for text in ("the other's \"' \\n\n\n", "日本語 日本 é🎉½\0", "", "a\\ther  ther", *EACH_LINE):
        assert ours.encode(text) == theirs.tokenize(text.encode(), add_bos=False, special=False)


def test_special_tokens_are_no_byte_strings():
    extra = [("<|end|>", CONTROL), ("<think>", USER), ("[PAD273]", UNUSED)]
    tokenizer = Tokenizer.from_gguf(byte_strings(WORDS, extra))
    end = 257 + len(WORDS)
    assert end not in tokenizer.encode("a<|end|>")
    assert tokenizer.encode("a<|end|>", special=True) == [98, end]
    assert tokenizer.encode("<think>") == [end + 1]
    assert tokenizer.token_bytes(end + 1) == b"<think>"
    assert tokenizer.decode(tokenizer.encode("[PAD273]")) == "[PAD273]"
    assert not tokenizer.add_bos


def test_text_comes_whole_from_tokens_that_are_none():
    tokenizer = Tokenizer.from_gguf(byte_strings(WORDS))
    stream, text = TextStream(), "日本語🎉"
    parts = [stream.push(tokenizer.token_bytes(i)) for i in tokenizer.encode(text)]
    assert "".join(parts) + stream.flush() == text


def test_a_token_has_1024_bytes_at_most():
    assert Tokenizer.from_gguf(byte_strings([b"a" * 1024])).encode("a" * 1025) == [257, 98]
    with pytest.raises(FormatError, match="a token of 1,025 bytes, and 1,024 are the most"):
        Tokenizer.from_gguf(byte_strings([b"a" * 1025]))


def test_every_byte_must_be_a_token():
    metadata = byte_strings([])
    metadata["tokenizer.ggml.tokens"][1 + 0x41] = "AA"
    with pytest.raises(FormatError, match=r"no token for the byte 65: convert the model again"):
        Tokenizer.from_gguf(metadata)


# -- folders: a list of tokens, in Python's literals -----------------------------------------------


def write(folder, strings, **config):
    """Write the list as RWKV does: a string where the bytes are text, else bytes."""
    lines = []
    for i, token in enumerate([*(bytes([n]) for n in range(256)), *strings]):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{i + 1} {literal} {len(token)}\n")
    (folder / LIST).write_text("".join(lines), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def read(folder, rows=400):
    config = JsonObject({"eos_token_id": 0}, "config.json")
    return tokenizer_metadata(folder, config, rows)


def test_a_folder_has_the_tokens_of_its_list(tmp_path):
    write(tmp_path, WORDS)
    metadata, gguf = read(tmp_path), byte_strings(WORDS)
    size = len(gguf["tokenizer.ggml.tokens"])
    assert metadata["tokenizer.ggml.tokens"][:size] == gguf["tokenizer.ggml.tokens"]
    assert metadata["tokenizer.ggml.tokens"][size] == f"[PAD{size}]"
    assert [*metadata["tokenizer.ggml.token_type"]] == [CONTROL] + [1] * (size - 1) + [UNUSED] * (
        400 - size
    )
    text = "the other's 日本語 \"' 🎉\n\n"
    assert Tokenizer.from_gguf(metadata).encode(text) == by_definition(text, WORDS)


def test_a_folder_names_the_token_that_is_not_in_its_list(tmp_path):
    """transformers gives the end of a turn an id of its own, which the model never saw."""
    end = "<|rwkv_tokenizer_end_of_text|>"
    decoder = {"0": {"content": end}, "300": {"content": "\n\n"}, "301": {"content": "<|more|>"}}
    write(tmp_path, WORDS, bos_token=end, eos_token="\n\n", added_tokens_decoder=decoder)
    tokenizer = Tokenizer.from_gguf(read(tmp_path))
    assert tokenizer.bos_id == 0
    assert tokenizer.encode(f"{end}a<|more|>\n\n", special=True) == [0, 98, 301, 257]
    assert dict(tokenizer.end_ids) == {
        257: "tokenizer_config.json eos_token", 0: "config.json eos_token_id",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "1 'a' 2",
        "x 'a' 1",
        "1 a 1",
        "1 [1",
        "1",
        "",
        "1 ['a'] 1",
        "1 300 300",
        "1 'é' 1",
        "1 {[1]} 1",
        "1 {[]: 1} 1",
    ],
)
def test_lines_that_are_no_tokens_are_refused(tmp_path, line):
    write(tmp_path, WORDS)
    (tmp_path / LIST).write_text(f"{line}\n")
    with pytest.raises(FormatError, match=r"rwkv_vocab_v20230424.txt: .* is not an id, a string"):
        read(tmp_path)


def test_a_token_that_is_in_the_list_twice_is_refused(tmp_path):
    write(tmp_path, WORDS)
    with (tmp_path / LIST).open("a") as file:
        file.write("300 'a' 1\n")
    with pytest.raises(FormatError, match=r"txt: .300 'a' 1. has the token of number 98 once more"):
        read(tmp_path)


@pytest.mark.parametrize(
    "decoder", [{"x": {"content": "a"}}, {"3": "a"}, {"3": {}}, {"9" * 5000: {"content": "<x>"}}]
)
def test_added_tokens_must_have_ids_and_texts(tmp_path, decoder):
    write(tmp_path, WORDS, added_tokens_decoder=decoder)
    with pytest.raises(FormatError, match="added_tokens_decoder"):
        read(tmp_path)
