"""What is prepared of a request is prepared once, and its grammar compiled once."""

import pickle
from dataclasses import fields
from weakref import ref

import pytest

from cutaway import LLM, AsyncLLM
from cutaway.cli.options import arguments
from cutaway.cli.options.parser import Parser
from cutaway.engine import ConstraintParams, Request, RunParams, Score, StopParams
from cutaway.methods.rows import GivenText
from cutaway.requests.completion import Stopwatch, Timing
from cutaway.requests.keywords import KEYWORDS, Absent, Flag, RequestOptions
from cutaway.requests.options import Options, parse_options
from cutaway.requests.prefill import iterate_ended
from cutaway.requests.prepared import prepare
from cutaway.requests.sync_llm import LogitsReader
from cutaway.sampling import SamplingParams
from cutaway.text.grammar import compiler
from support.block_integrity import check_blocks
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


# -- prefill ---------------------------------------------------------------------------------------

# Many prefill-only texts: a result is not referenced once it was yielded.


def test_a_yielded_result_is_not_referenced(tiny_path):
    llm = LLM(tiny_path, threads=1)
    readers = []

    def jobs():
        for token in range(40):
            reader = LogitsReader(1, llm.tokenizer.vocab_size, 1)
            readers.append(ref(reader))
            yield Request(prompt_token_ids=(token, 5), decoder=Score(logits_from=1)), reader

    done = []
    for index, reader in iterate_ended(llm.owner, jobs()):
        assert reader.logits().shape[0] == 1
        done.append(index)
        del reader
        held = sum(readers[i]() is not None for i in done[:-1])
        assert held == 0
    assert sorted(done) == list(range(40))


def test_stopping_early_leaves_nothing(tiny_path):
    llm = LLM(tiny_path, threads=1)
    texts = [GivenText((token, 5, 6)) for token in range(40)]
    rows = llm.last_rows(GivenText((1, 5)), texts)
    next(rows)
    rows.close()
    llm.generate("ab", max_tokens=1)  # a step after it
    assert llm.engine.is_idle
    check_blocks(llm.engine.blocks, [])


# -- keywords --------------------------------------------------------------------------------------

# The table of keywords is whole: whoever adds one, and forgets a part of it, reads here which.


CHECKED = (SamplingParams, StopParams, ConstraintParams, RunParams)
HEADINGS = (
    "prompt", "model", "sampling", "stopping", "constraints", "interventions", "trace", "output",
)  # fmt: skip


def test_every_keyword_has_a_type_a_row_and_a_class_that_checks_it():
    checked = [f.name for kind in CHECKED for f in fields(kind)]
    own = {f.name for f in fields(Options)} - {"draft", "sources"}
    own -= {"sampling", "stopping", "constraint", "run"}
    assert {*KEYWORDS} == {*RequestOptions.__annotations__} == {*checked, *own}
    assert len(checked) + len(own) == len(KEYWORDS)


@pytest.mark.parametrize("name", KEYWORDS)
def test_the_default_of_a_row_is_the_one_in_force(name):
    options = parse_options({})
    parts = (options.sampling, options.stopping, options.constraint, options.run, options)
    (part,) = (part for part in parts if name in {f.name for f in fields(part)})
    assert getattr(part, name) == KEYWORDS[name].default


def test_every_keyword_has_a_flag_or_a_reason_to_have_none():
    parser = Parser("cutaway test", "Test.")
    for title in HEADINGS:
        arguments.add_keywords(parser, title)
    arguments.add_keyword(parser, "denoise")
    flags = {action.dest: action for action in parser._actions}
    for name, row in KEYWORDS.items():
        assert (name in flags) == isinstance(row.flag, Flag)
        assert len(row.flag.reason if isinstance(row.flag, Absent) else flags[name].help) > 10


def test_every_sentence_begins_small_and_ends_without_a_full_stop():
    for name, row in KEYWORDS.items():
        assert row.help[0].islower() or row.help.startswith(("DRY", "Lark")), name
        assert not row.help.endswith(".") and "  " not in row.help, name


# -- stopwatch -------------------------------------------------------------------------------------

# Times of a text, by a clock that is read by hand.


def timing(*made: float, delayed: int = 0) -> Timing:
    watch = Stopwatch(10.0)
    for moment in made:
        watch.token(moment)
    return watch.timing(0.5, 4, len(made), delayed)


def test_the_first_token_is_of_the_prefill_and_the_others_have_a_pace() -> None:
    assert timing(12.0, 12.5, 13.0) == Timing(0.5, 2.0, 2.0, 2.0)
    assert timing(12.0) == Timing(0.5, 2.0, 2.0, None)
    assert timing() == Timing(0.5, None, None, None)


def test_tokens_of_one_turn_have_no_pace() -> None:
    assert timing(12.0, 12.0) == Timing(0.5, 2.0, 2.0, None)


def test_tokens_that_were_held_until_the_first_came_are_not_counted_twice() -> None:
    """33 tokens are made before the first is heard; then two more, and all the rest at once."""
    late = [76.0, 78.0, *[80.0] * 33]
    assert timing(*late, delayed=32) == Timing(0.5, 66.0, None, 0.5)
    assert timing(*[30.0] * 20, delayed=32) == Timing(0.5, 20.0, None, None)
