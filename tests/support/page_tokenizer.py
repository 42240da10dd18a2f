"""The page's own tokenizer in Node, compared with the Python one."""

import json
from pathlib import Path

from cutaway.features.page.folder import WEB
from support.page_modules import run_node

MODULE = Path(str(WEB / "js/local/tokenizer.js")).as_uri()
MARK = "\U00020000"  # no text has this character
_CUT = """import {{ readFileSync }} from "node:fs";
const {{ Tokenizer }} = await import({module!r});
const [vocabulary, texts] = JSON.parse(readFileSync({asked!r}, "utf8"));
const tokenizer = new Tokenizer(vocabulary);
const cut = (text, ...how) => {{
  try {{ return tokenizer.encode(text, ...how); }} catch {{ return null; }}
}};
const names = vocabulary.tokens.map((_, id) => [tokenizer.name(id), [...tokenizer.bytes(id)]]);
const escaped = texts.map((text) => tokenizer.escape(text, {mark!r}));
const ids = texts.flatMap((text, i) =>
  [cut(text, false), cut(text, true), cut(escaped[i], true, {mark!r})]);
console.log(JSON.stringify([ids, escaped, names]));
"""


def check_cuts_alike(vocabulary, tokenizer, texts, tmp_path):
    """Check that both tokenizers give the same ids of each text, or both refuse it; that both hide
    the same special tokens; and that tokens have the same bytes.

    vocabulary: as the page reads it; tokenizer: a Tokenizer
    """
    (tmp_path / "asked.json").write_text(json.dumps([vocabulary, texts]))
    (tmp_path / "cut.mjs").write_text(
        _CUT.format(module=MODULE, asked=str(tmp_path / "asked.json"), mark=MARK)
    )
    token_lists, escaped, tokens = json.loads(run_node(tmp_path / "cut.mjs"))
    hidden = [tokenizer.escape_special_tokens(text, MARK) for text in texts]
    here = [
        _ids(tokenizer, *options)
        for text, marked in zip(texts, hidden, strict=True)
        for options in ((text, False), (text, True), (marked, True, MARK))
    ]
    assert sum(ids is not None for ids in here) > len(texts) / 4  # SmolLM2 lacks some bytes
    assert token_lists == here
    assert escaped == hidden
    assert [data for _, data in tokens] == [
        [*tokenizer.token_bytes(i)] for i in range(tokenizer.vocab_size)
    ]
    for i, (name, data) in enumerate(tokens):
        if not data:
            assert name == tokenizer.token_name(i)


def _ids(tokenizer, text, special, mark=""):
    try:
        return tokenizer.encode(text, special=special, mark=mark)
    except ValueError:
        return None
