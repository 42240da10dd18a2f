"""The table of keywords is whole: whoever adds one, and forgets a part of it, reads here which."""

from dataclasses import fields

import pytest

from cutaway.cli.options import arguments
from cutaway.cli.options.parser import Parser
from cutaway.engine import ConstraintParams, RunParams, StopParams
from cutaway.requests.keywords import KEYWORDS, Absent, Flag, RequestOptions
from cutaway.requests.options import Options, parse_options
from cutaway.sampling import SamplingParams

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
        assert len(row.flag.why if isinstance(row.flag, Absent) else flags[name].help) > 10


def test_every_sentence_begins_small_and_ends_without_a_full_stop():
    for name, row in KEYWORDS.items():
        assert row.help[0].islower() or row.help.startswith(("DRY", "Lark")), name
        assert not row.help.endswith(".") and "  " not in row.help, name
