"""Conversations in a page without a server: the token ids of templates that leave out thoughts,
white space around messages, and system messages that say nothing."""

import json
import shutil
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from string import printable

import pytest

from cutaway.features.page.folder import WEB, page_tokenizer
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.chat_probe import ChatPieces
from support.page_modules import in_node
from support.page_tokenizer import MODULE
from support.text_vocabularies import CONTROL, USER, byte_level, sentencepiece

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
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


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_conversations_have_the_token_ids_of_the_template(kind, tmp_path):
    metadata = VOCABULARIES[kind]
    tokenizer, asked, expected = Tokenizer.from_gguf(metadata), [], []
    for name in NAMES:
        template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), "<s>", "</s>")
        pieces = ChatPieces.of(template)
        every = [*conversations(pieces.takes_system)]
        asked.append((asdict(pieces), every))
        expected.append([template.encode(messages, tokenizer) for messages in every])
    (tmp_path / "asked.json").write_text(json.dumps([page_tokenizer(metadata, tokenizer), asked]))
    chat = Path(str(WEB / "js/local/chat.js")).as_uri()
    script = SCRIPT.format(asked=str(tmp_path / "asked.json"), chat=chat, tokenizer=MODULE)
    (tmp_path / "chat.mjs").write_text(script)
    found = json.loads(in_node(tmp_path / "chat.mjs"))
    assert dict(zip(NAMES, found, strict=True)) == dict(zip(NAMES, expected, strict=True))
