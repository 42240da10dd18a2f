"""SentencePiece's BPE in a page without a server: ids as ours of pieces with scores (GGUF), of
ranked merges (tokenizer.json), with spaces in front of texts and without.
"""

import json
import shutil
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from string import printable

import numpy as np
import pytest

from cutaway.errors import InputError
from cutaway.features.page.folder import WEB
from cutaway.features.page.tokenizer import page_tokenizer
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.chat_probe import ChatPieces
from support import tiny_tokenizers
from support.many_scripts import lines
from support.page_modules import run_node
from support.page_tokenizer import MODULE, check_cuts_alike
from support.text_vocabularies import CONTROL, UNUSED, USER, byte_level, sentencepiece

NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
EXTRA = [
    ("\n\n", USER), ("\n\n\n", USER), ("▁▁▁▁", USER), ("<b>", USER), ("<unused1>", UNUSED),
    ("<|im_start|>", CONTROL), ("<|im_", CONTROL), ("<start_of_turn>", CONTROL), ("🙂", USER),
    ("§", CONTROL),
]  # fmt: skip
ODD = [
    "", " ", "  ", "▁", " a", "a\n\n\n\n b", "</s>x <s> y</s>", "<unk>", "<unused1>", "    <b> c",
    "<|im_start|>user\nHi <|im_x", "🙂🙃 🙂", "\x00\ud7ff\U0010ffff", "<0x0A>", "<s>", "]^-\\[",
    "<|im", "x <start_of_tur", "_start|>x", "turn>", ">", "<", "a§b§",
    "aaaaaaa" * 40 + "▁▁▁" * 30, "a b" * 300,
]  # fmt: skip


def trained(prefix, folder, size=3000):
    """A tokenizer.json's metadata: ranked merges, learned from lines in many scripts."""
    made = tiny_tokenizers.sentencepiece(prefix, size, [*lines(400, 99), *tiny_tokenizers.TEXTS])
    tiny_tokenizers.save(tiny_tokenizers.with_begin(made), folder)
    config = JsonObject({"bos_token_id": 1, "eos_token_id": 2}, "config.json")
    return tokenizer_metadata(folder, config, size + 20)


def scored(folder, **fields):
    """The same pieces with scores, of which many are equal."""
    tokens = trained("none", folder)["tokenizer.ggml.tokens"]
    pieces = [text for text in tokens[260:] if text and text not in {one for one, _ in EXTRA}]
    scores = [(text, -float(i // 3)) for i, text in enumerate(pieces)]
    return sentencepiece(scores, EXTRA, **fields)


KINDS = {
    "scores": scored,
    "scores, no space in front": lambda folder: scored(folder, add_space_prefix=False),
    "scores, no bytes": lambda folder: scored(folder, byte_tokens=False, unknown_token_id=0),
    "scores, no bytes, none unknown": lambda folder: scored(folder, byte_tokens=False),
    "merges, every": lambda folder: trained("every", folder),
    "merges, first": lambda folder: trained("first", folder),
    "merges, none": lambda folder: trained("none", folder),
    "merges and words that hold spaces": lambda folder: (
        scored(folder)
        | {
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.merges": ["a b", "▁ a", "a ▁", "a▁ b", "▁ ▁"],
        }
    ),
}


def check(kind, tmp_path, texts):
    metadata = KINDS[kind](tmp_path)
    ours = Tokenizer.from_gguf(metadata)
    check_cuts_alike(page_tokenizer(metadata, ours), ours, texts, tmp_path)


@NODE
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_ours(kind, tmp_path):
    check(kind, tmp_path, [*lines(1500), *ODD, *tiny_tokenizers.TEXTS])


@NODE
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("kind", ["scores", "merges, every", "merges, none"])
def test_ids_of_a_million_and_a_half_lines_are_ours(kind, seed, tmp_path):
    check(kind, tmp_path, [*lines(50_000, seed)])


def test_other_tokenizers_are_refused_by_name(tmp_path):
    metadata = scored(tmp_path)
    ours = Tokenizer.from_gguf(metadata)
    for changed, said in (
        ({"tokenizer.ggml.model": "t5"}, "tokenizer is 't5', and a page has"),
        ({"cutaway.space_eating_token_ids": np.array([2])}, "take the white space beside them"),
    ):
        with pytest.raises(InputError, match=said):
            page_tokenizer(metadata | changed, ours)
    ended = {"tokenizer.ggml.seperator_token_id": 2, "tokenizer.ggml.add_sep_token": True}
    with pytest.raises(InputError, match="texts end with a token"):
        page_tokenizer(metadata, Tokenizer.from_gguf(metadata | ended))


# -- page chat alone -------------------------------------------------------------------------------

# Conversations in a page without a server: the token ids of templates that leave out thoughts,
# white space around messages, and system messages that say nothing.


TEMPLATES = Path(__file__).parents[2] / "data/chat_templates"
NAMES = ("families/qwen3", "families/qwen3.5", "families/deepseek-r1-distill", "families/lfm2.5",
         "families/lfm2", "families/granite-4.0", "families/glm-4.7-flash", "llama3",
         "smollm2", "gemma2", "families/gemma-3")  # fmt: skip
SAID = (
    "Hello!", "<think>\nHm.</think>\n\n Yes. ", "", " a </think> b</think>\t \n c\r\n", "</think>",
    "\u3000<think>a\x1c", "<|im_end|>\n", "<thi", "nk></think>\x85é 🙂",
)  # fmt: skip
SCRIPT = """
import {{ readFileSync }} from "node:fs";
const {{ Tokenizer }} = await import({tokenizer!r});
const {{ chatIds }} = await import({chat!r});
const [vocabulary, asked] = JSON.parse(readFileSync({asked!r}, "utf8"));
const tokenizer = new Tokenizer(vocabulary);
console.log(JSON.stringify(asked.map(([pieces, every]) =>
  every.map((messages) => chatIds(messages, pieces, tokenizer)))));
"""


def conversations(takes_system):
    for first in range(len(SAID)):
        said = [*SAID[first:], *SAID[:first]]
        for questions in (1, 2, 4):
            turns = [
                {"role": ("user", "assistant")[i % 2], "content": said[i % len(said)]}
                for i in range(2 * questions - 1)
            ]
            yield turns
            if takes_system:
                yield [{"role": "system", "content": said[-1]}, *turns]


def marks(kind):
    """Tokens that templates write, and contents may spell."""
    thoughts, turns = ("<think>", "</think>"), ("<start_of_turn>", "<end_of_turn>", "<|im_end|>")
    return [*((one, kind) for one in thoughts), *((one, CONTROL) for one in turns)]


def pieces(**fields):
    """SentencePiece's, with the letters of ASCII and a few words."""
    words = [(f"{a}{b}", -i - 1.0) for i, (a, b) in enumerate(pairwise("▁two▁words\n\nYes▁Hm"))]
    return sentencepiece([*((one, -99.0) for one in printable + "▁"), *words], **fields)


VOCABULARIES = {
    "control": byte_level(extra=[*marks(CONTROL), ("<|im_start|>", CONTROL), ("<s>", CONTROL)]),
    "user-defined": byte_level(extra=[*marks(USER), ("<|im_start|>", CONTROL), ("<s>", CONTROL)]),
    "pieces": pieces(extra=marks(CONTROL)),
    "pieces, no space in front": pieces(extra=marks(USER), add_space_prefix=False),
}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_conversations_have_the_token_ids_of_the_template(kind, tmp_path):
    metadata = VOCABULARIES[kind]
    tokenizer, asked, expected = Tokenizer.from_gguf(metadata), [], []
    for name in NAMES:
        template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), "<s>", "</s>")
        pieces = ChatPieces.from_template(template)
        every = [*conversations(pieces.takes_system)]
        asked.append((asdict(pieces), every))
        expected.append([template.encode(messages, tokenizer) for messages in every])
    (tmp_path / "asked.json").write_text(json.dumps([page_tokenizer(metadata, tokenizer), asked]))
    chat = Path(str(WEB / "js/local/chat.js")).as_uri()
    script = SCRIPT.format(asked=str(tmp_path / "asked.json"), chat=chat, tokenizer=MODULE)
    (tmp_path / "chat.mjs").write_text(script)
    found = json.loads(run_node(tmp_path / "chat.mjs"))
    assert dict(zip(NAMES, found, strict=True)) == dict(zip(NAMES, expected, strict=True))
