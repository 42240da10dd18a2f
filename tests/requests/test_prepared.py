"""What is prepared of a request is prepared once, and its grammar compiled once."""

import pickle

import pytest

from cutaway import LLM, AsyncLLM
from cutaway.requests.base import prepare
from cutaway.text.grammar import compiler
from support.random_llama import write_tiny_llama

ASKED = {"regex": "[ab]{3}", "seed": 1}


@pytest.fixture
def llm(tmp_path):
    with LLM(write_tiny_llama(tmp_path / "tiny.gguf"), progress=False) as llm:
        yield llm


@pytest.fixture
def lookups(monkeypatch):
    """Grammars that a compiler was asked for."""
    asked, compile = [], compiler.GrammarCompiler.compile

    def counted(self, grammar):
        asked.append(grammar)
        return compile(self, grammar)

    monkeypatch.setattr(compiler.GrammarCompiler, "compile", counted)
    return asked


async def test_a_grammar_is_looked_up_once(llm, lookups):
    expected = llm.generate("ab", **ASKED)
    assert len(lookups) == 1
    async with AsyncLLM(llm) as model:
        first = await model.generate("ab", **ASKED | {"regex": "[ab]{2}"})
        done = await model.generate("ab", **ASKED)
    assert len(lookups) == 2  # that of the first; the other is known
    assert len(first.text) == 2
    assert done.token_ids == expected.token_ids


async def test_a_grammar_stays_in_its_process(llm):
    request = prepare(llm, "ab", llm.parse_options(ASKED)).request
    arrived = pickle.loads(pickle.dumps(request))
    assert request.grammar is not None
    assert arrived.grammar is None
    assert arrived == request
    async with AsyncLLM(llm) as model:
        reader = await model.queue([(arrived, 1)])
        [sequence] = reader.sequences
        while await reader.read():
            pass
    assert sequence.request.grammar is not None
    assert bytes(llm.tokenizer.decode(sequence.output_token_ids), "utf-8").startswith((b"a", b"b"))
