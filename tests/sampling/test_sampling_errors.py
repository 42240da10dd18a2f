"""An error belongs to its row: the rows beside it are drawn as if it were not there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.sampling import (
    CompiledChain,
    History,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    sample,
)


class Mine(Exception):
    """A user's own."""


MINE = Mine("of the user")


def raising(_, __):
    raise MINE


def lost(_, logits):
    return logits[:-1]


def kept(_, logits):
    return logits


def asked(position, *processors, **settings):
    params = SamplingParams(processors=processors, **settings)
    chain = CompiledChain(build_chain(params), params, ())
    return RowDraw(chain, History(), 11, position, Observe(top=2))


def noise(rows, vocab=50):
    return np.random.default_rng(rows).normal(0, 3, (rows, vocab)).astype(np.float32)


KINDS = ("native", "processor", "not finite", "not finite for a processor", "raises", "misbehaves")


def row_of(kind, position, logits):
    """A draw of this kind, whose row is spoilt where that is the kind."""
    if kind.startswith("not finite"):
        logits[position] = np.nan
    processors = {
        "processor": (kept,), "raises": (raising,), "misbehaves": (lost,),
        "not finite for a processor": (kept,),
    }  # fmt: skip
    return asked(position, *processors.get(kind, ()))


def expected_error(kind, found):
    if kind == "raises":
        return found is MINE
    if kind == "misbehaves":
        return isinstance(found, InputError) and "one logit per token" in str(found)
    return isinstance(found, CutawayError) and "are not finite" in str(found)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=7))
def test_rows_that_fail_leave_the_others_alone(kinds):
    logits = noise(len(kinds))
    draws = [row_of(kind, i, logits) for i, kind in enumerate(kinds)]
    found = sample(logits, draws)
    assert len(found) == len(kinds)
    for i, kind in enumerate(kinds):
        if kind in ("native", "processor"):
            assert found[i] == sample(logits[i : i + 1], [draws[i]])[0]
        else:
            assert isinstance(found[i], Exception)
            assert expected_error(kind, found[i])


def test_an_error_names_the_position_of_its_row():
    logits = noise(2)
    logits[1, 3] = np.inf
    _, error = sample(logits, [asked(5), asked(77)])
    assert str(error) == "the model's logits at position 77 are not finite"


def test_an_interrupt_is_no_error_of_a_row():
    def interrupted(_, __):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(noise(2), [asked(0), asked(1, interrupted)])
