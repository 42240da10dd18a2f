"""A folder's tokenizer gives the tokens that the `tokenizers` library gives."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import sampling_metadata, tokenizer_metadata
from cutaway.files.huggingface.tokenizer.splitting import byte_level_family
from cutaway.text import ChatTemplate, Tokenizer
from support.random_models import edit
from support.tiny_tokenizers import KINDS, SPECIALS, TEXTS, byte_level, save, sentencepiece

WORDS = [*SPECIALS[1:], "<both>", " ", "  ", "\n", "▁", *" ".join(TEXTS).split(), *"éß½日🎉\0aZ7"]
SOUP = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | SOUP
ROWS = 400


def read(folder, config=None, rows=ROWS):
    return tokenizer_metadata(folder, JsonObject(config or {}, "config.json"), rows)


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """The library's tokenizer and ours, of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = KINDS[request.param]()
    save(theirs, folder)
    return theirs, Tokenizer.from_gguf(read(folder, {"bos_token_id": 1, "eos_token_id": 2}))


@settings(max_examples=300, deadline=None)
@given(text=ANY)
def test_tokens_are_those_of_the_library(both, text):
    theirs, ours = both
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=True, add_bos=False) == wanted


def test_texts_begin_as_those_of_the_library(both):
    theirs, ours = both
    assert ours.encode("the fox") == theirs.encode("the fox").ids


@settings(max_examples=100, deadline=None)
@given(text=ANY)
def test_what_is_read_can_be_written(both, text):
    _, ours = both
    pieces = ours.decode(ours.encode("▁")) != "▁"  # SentencePiece reads it as a space
    wanted = text.replace("▁", " ") if pieces else text
    decoded = ours.decode(ours.encode(text, add_bos=False))
    assert decoded in (wanted, wanted.removeprefix(" ")) if pieces else decoded == wanted


def test_ranks_are_taken_as_they_are(tmp_path):
    """A score for each token could not say this: "bc" and "abc" are tokens, "a" + "bc" no merge."""
    made = json.loads(sentencepiece("none").to_str())
    base = {token: i for token, i in made["model"]["vocab"].items() if i < 4 + 256}
    extra = ["a", "b", "c", "d", "bc", "ab", "abc", "cd"]
    made["model"]["vocab"] = base | {text: 260 + i for i, text in enumerate(extra)}
    made["model"]["merges"] = [["b", "c"], ["c", "d"], ["a", "b"], ["ab", "c"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    from tokenizers import Tokenizer as Library

    theirs = Library.from_file(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_gguf(read(tmp_path))
    for text in ("abc", "abcd", "ab", "aabbccdd", "abcabcdbc"):
        assert ours.encode(text, add_bos=False) == theirs.encode(text).ids


def test_a_token_may_take_the_white_space_behind_it(tmp_path):
    from tokenizers import AddedToken

    theirs = sentencepiece("every")
    theirs.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    save(theirs, tmp_path)
    ours = Tokenizer.from_gguf(read(tmp_path, rows=500))
    for text in ("<|end|>\n the", "the <|end|>   <|turn|> the", "<|end|>\n", " <|end|>\x85x\x1f"):
        assert ours.encode(text, special=True, add_bos=False) == theirs.encode(text).ids


def test_rows_without_a_token_are_unused(tmp_path):
    save(byte_level(), tmp_path)
    metadata = read(tmp_path, rows=390)
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert tokens[-2:] == ["[PAD388]", "[PAD389]"]
    assert kinds[-2:].tolist() == [5, 5]
    assert kinds[[0, 3, 4, 384]].tolist() == [3, 3, 1, 4]
    assert tokens[384] == "<both>"


def test_an_added_token_beyond_the_embedding_is_left_out(tmp_path):
    save(byte_level(), tmp_path)
    assert "<both>" not in read(tmp_path, rows=384)["tokenizer.ggml.tokens"]
    with pytest.raises(FormatError, match="has rows for 0 to 382"):
        read(tmp_path, rows=383)


# -- special tokens --------------------------------------------------------------------------------


def test_every_end_is_known_with_its_origin(tmp_path):
    save(byte_level(), tmp_path)
    edit(tmp_path / "tokenizer_config.json", eos_token="<|turn|>", bos_token={"content": "<s>"})
    edit(tmp_path / "generation_config.json", eos_token_id=[2, 7])
    metadata = read(tmp_path, {"eos_token_id": 2})
    assert metadata["tokenizer.ggml.eos_token_id"] == 3
    ends = Tokenizer.from_gguf(metadata).end_ids
    assert dict(ends) == {
        3: "tokenizer_config.json eos_token",
        2: "config.json eos_token_id",
        7: "generation_config.json eos_token_id",
    }


def test_recommended_settings_have_ggufs_names(tmp_path):
    assert sampling_metadata(tmp_path) == {}
    edit(
        tmp_path / "generation_config.json", temperature=0.6, top_k=20, do_sample=True,
        repetition_penalty=1.1, top_p=None, min_p="low",
    )  # fmt: skip
    recommended = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.1}
    assert sampling_metadata(tmp_path) == {
        f"general.sampling.{k}": v for k, v in recommended.items()
    }


def test_special_tokens_map_names_what_the_config_does_not(tmp_path):
    save(byte_level(), tmp_path)
    edit(tmp_path / "special_tokens_map.json", bos_token="<s>", eos_token="</s>", pad_token="<unk>")
    metadata = read(tmp_path)
    named = [metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")]
    assert named == [1, 2, 0]


@pytest.mark.parametrize(
    ("kind", "config", "adds"),
    [
        ("llama", {}, True),
        ("llama", {"add_bos_token": False}, False),
        ("smollm", {"bos_token": "<s>"}, False),
        ("smollm", {"bos_token": "<s>", "add_bos_token": True}, True),
        ("smollm", {"add_bos_token": True}, False),  # there is none
    ],
)
def test_who_begins_texts(tmp_path, kind, config, adds):
    save(KINDS[kind](), tmp_path)
    edit(tmp_path / "tokenizer_config.json", **config)
    assert Tokenizer.from_gguf(read(tmp_path)).add_bos is adds


def test_template_files_are_found_in_their_order(tmp_path):
    save(byte_level(), tmp_path)
    assert "tokenizer.chat_template" not in read(tmp_path)
    two = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]
    edit(tmp_path / "tokenizer_config.json", chat_template=two, eos_token="</s>")
    metadata = read(tmp_path, {"eos_token_id": 3})
    template = ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "</s>"
    (tmp_path / "chat_template.jinja").write_text("own file: é", "utf-8")
    assert read(tmp_path)["tokenizer.chat_template"] == "own file: é"


# -- refusals --------------------------------------------------------------------------------------


def changed(kind, path, value):
    """A tokenizer.json with one value changed; path: keys and indices."""
    made = json.loads(KINDS[kind]().to_str())
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


FOUND_LATE = {"id": 1, "content": "<s>", "normalized": True, "special": False}
SPACED = {"id": 9999, "content": "a b", "special": False, "normalized": True}
REFUSED = [
    ("smollm", ("model", "type"), "Magic", "model: type is 'Magic', which is not supported"),
    ("smollm", ("model", "dropout"), 0.1, "dropout is 0.1"),
    ("smollm", ("model", "continuing_subword_prefix"), "##", "continuing_subword_prefix is '##'"),
    ("smollm", ("model", "ignore_merges"), True, "keeps whole words, as no supported family does"),
    ("smollm", ("model", "merges"), [["a b", "c"]], "merges is .* a list of pairs"),
    ("smollm", ("model", "vocab"), {"a": -1}, "the id of 'a' is -1"),
    ("smollm", ("model", "vocab"), {"a": 1, "b": 1}, "two tokens of vocab have the id 1"),
    ("smollm", ("model", "vocab"), {"\ud800": 9}, "no Unicode text"),
    ("smollm", ("normalizer",), {"type": "Lowercase"}, "normalizer is .*only NFC is"),
    ("smollm", ("pre_tokenizer", "pretokenizers", 0, "pattern"), {"Regex": "x"}, "cuts words by"),
    ("smollm", ("pre_tokenizer", "pretokenizers", 0, "behavior"), "Removed", "splits in a way"),
    ("smollm", ("pre_tokenizer", "pretokenizers", 0), {"type": "Whitespace"}, "'Whitespace' is"),
    ("gpt-2", ("pre_tokenizer", "add_prefix_space"), True, "add_prefix_space is not supported"),
    ("smollm", ("added_tokens", 0, "single_word"), True, "single_word is True.*'<unk>' must do w"),
    ("smollm", ("model", "vocab"), {"a": 1}, "'a' and the added token '<s>' have the id 1"),
    ("smollm", ("added_tokens", 0, "id"), 9, "'<unk>' has another id in vocab"),
    ("smollm", ("post_processor",), {"type": "OtherProcessing"}, "only TemplateProcessing and"),
    ("smollm", ("post_processor",), {"type": "BertProcessing"}, "names None, no token"),
    ("llama", ("post_processor", "single"), [{"Sequence": {}}, {"SpecialToken": {}}], "names None"),
    ("llama", ("post_processor", "single", 0, "SpecialToken", "id"), "<x>", "names '<x>', no tok"),
    ("llama", ("model", "byte_fallback"), False, "neither ByteLevel nor byte_fallback"),
    ("llama", ("added_tokens", 1), FOUND_LATE, "normalized is True.*'<s>' must be found"),
    ("gemma", ("added_tokens", 1), SPACED, "normalized is True.*'a b' must be found"),
    ("llama", ("model", "ignore_merges"), True, "ignore_merges is True"),
    ("llama", ("model", "vocab"), {"<unk>": 0}, "a token for each of 256 bytes"),
    ("llama", ("normalizer",), {"type": "Lowercase"}, "prepare a text in a way"),
    ("mistral", ("pre_tokenizer", "split"), True, "prepare a text in a way"),
    ("mistral", ("pre_tokenizer", "prepend_scheme"), "always", "prepare a text in a way"),
]  # fmt: skip


def test_special_tokens_may_be_found_late_since_text_alone_never_has_them(tmp_path):
    made = changed("llama", ("added_tokens", 1), FOUND_LATE | {"special": True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    assert Tokenizer.from_gguf(read(tmp_path)).encode("a<s>", special=True)[-1] == 1


@pytest.mark.parametrize(("kind", "path", "value", "sentence"), REFUSED)
def test_what_would_read_differently_is_refused(tmp_path, kind, path, value, sentence):
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed(kind, path, value)))
    with pytest.raises(FormatError, match=sentence):
        read(tmp_path)


def test_one_expression_may_remove_what_it_does_not_match(tmp_path):
    """Phi-4's way to say it: there is nothing that the expression does not match."""
    made = changed("qwen2", ("pre_tokenizer", "pretokenizers", 0, "behavior"), "Removed")
    made["pre_tokenizer"]["pretokenizers"][0]["invert"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    assert read(tmp_path)["tokenizer.ggml.pre"] == "qwen2"


def test_merges_are_read_in_both_forms(tmp_path):
    made = json.loads(byte_level().to_str())
    made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    old = read(tmp_path)["tokenizer.ggml.merges"]
    save(byte_level(), tmp_path)
    assert read(tmp_path)["tokenizer.ggml.merges"] == old


def test_a_bad_id_names_its_file(tmp_path):
    save(byte_level(), tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=[400])
    with pytest.raises(FormatError, match=r"generation_config\.json: eos_token_id .* 0 to 399"):
        read(tmp_path)


def test_an_embedding_of_absurd_length_takes_no_memory(tmp_path, peak_memory):
    save(byte_level(), tmp_path)
    with peak_memory(10e6), pytest.raises(FormatError, match="has 3000000 rows, and 2097152 is"):
        tokenizer_metadata(tmp_path, JsonObject({}, "config.json"), 3_000_000)


def test_steps_may_be_nested_as_deep_as_json_is(tmp_path):
    made = json.loads(byte_level().to_str())
    steps = made["pre_tokenizer"]
    for _ in range(3000):
        steps = {"type": "Sequence", "pretokenizers": [steps]}
    tokenizer = JsonObject(made | {"pre_tokenizer": steps}, "tokenizer.json")
    assert byte_level_family(tokenizer) == byte_level_family(JsonObject(made, "tokenizer.json"))


@pytest.mark.parametrize("template", [5, [{"name": "default", "template": 5}], {"a": "b"}])
def test_a_template_that_is_no_text_names_its_file(tmp_path, template):
    save(byte_level(), tmp_path)
    edit(tmp_path / "tokenizer_config.json", chat_template=template)
    with pytest.raises(FormatError, match=r"^tokenizer_config\.json chat_template is .* a text"):
        read(tmp_path)


def test_templates_without_a_default_are_none(tmp_path):
    save(byte_level(), tmp_path)
    templates = [{"name": [], "template": "a"}, {"template": "b"}, 7]
    edit(tmp_path / "tokenizer_config.json", chat_template=templates)
    assert "tokenizer.chat_template" not in read(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path):
    with pytest.raises(FormatError, match=r"has no tokenizer\.json; load the tokenizer with"):
        read(tmp_path)


def test_a_prompt_that_would_be_ended_is_refused(tmp_path):
    save(byte_level(), tmp_path)
    edit(tmp_path / "tokenizer_config.json", add_eos_token=True)
    with pytest.raises(FormatError, match="add_eos_token is True"):
        read(tmp_path)


def test_arrays_are_what_gguf_readers_give(tmp_path):
    save(byte_level(), tmp_path)
    metadata = read(tmp_path)
    assert isinstance(metadata["tokenizer.ggml.token_type"], np.ndarray)
    assert isinstance(metadata["tokenizer.ggml.merges"], list)
