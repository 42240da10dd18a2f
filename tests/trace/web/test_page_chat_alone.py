"""Conversations in a page without a server: the token ids of templates that leave out thoughts,
white space around messages, and system messages that say nothing."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from cutaway.lab.page_folder import WEB, page_tokenizer
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.chat_pieces import ChatPieces
from support.page_modules import in_node
from support.text_vocabularies import CONTROL, USER, byte_level

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
TEMPLATES = Path(__file__).parents[2] / "data/chat_templates"
NAMES = ("families/qwen3", "families/qwen3.5", "families/deepseek-r1-distill", "families/lfm2.5",
         "families/lfm2", "families/granite-4.0", "families/glm-4.7-flash", "llama3",
         "smollm2")  # fmt: skip
SAID = (
    "Hello!", "<think>\nHm.</think>\n\n Yes. ", "", " a </think> b</think>\t \n c\r\n", "</think>",
    "\u3000<think>a\x1c", "<|im_end|>\n", "<thi", "nk></think>\x85é 🙂",
)  # fmt: skip
SCRIPT = """
import {{ readFileSync }} from "node:fs";
const {{ ByteLevelBPE }} = await import({bpe!r});
const {{ chatIds }} = await import({chat!r});
const [vocabulary, asked] = JSON.parse(readFileSync({asked!r}, "utf8"));
const tokenizer = new ByteLevelBPE(vocabulary);
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


@pytest.mark.parametrize("kind", [CONTROL, USER])
def test_conversations_have_the_token_ids_of_the_template(kind, tmp_path):
    marks = [("<think>", kind), ("</think>", kind), ("<|im_start|>", CONTROL), ("<s>", CONTROL)]
    metadata = byte_level(extra=[*marks, ("<|im_end|>", CONTROL)])
    tokenizer, asked, expected = Tokenizer.from_gguf(metadata), [], []
    for name in NAMES:
        template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), "<s>", "</s>")
        pieces = ChatPieces.of(template)
        every = [*conversations(pieces.takes_system)]
        asked.append((asdict(pieces), every))
        expected.append([template.encode(messages, tokenizer) for messages in every])
    (tmp_path / "asked.json").write_text(json.dumps([page_tokenizer(metadata, tokenizer), asked]))
    modules = {name: Path(str(WEB / f"js/local/{name}.js")).as_uri() for name in ("bpe", "chat")}
    script = SCRIPT.format(asked=str(tmp_path / "asked.json"), **modules)
    (tmp_path / "chat.mjs").write_text(script)
    found = json.loads(in_node(tmp_path / "chat.mjs"))
    assert dict(zip(NAMES, found, strict=True)) == dict(zip(NAMES, expected, strict=True))
