"""What surrounds the native sampler: who goes to the twin, what is refused, what is read.

Rows read without a draw: native and twin are equal in every figure, in every tier.
"""

import ctypes
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.sampling import read_rows, sample
from cutaway.sampling.observe import read_row
from support.native_rows import (
    ROWS,
    TIERS,
    TOPS,
    _native,
    draw_by_twin,
    draw_noise,
    natively,
    needs_native,
    row_draw,
    same,
)

pytestmark = needs_native


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 15, 16, 36])
def test_logits_that_are_not_finite_are_refused_by_position(bad, where):
    logits = np.zeros((2, 37), np.float32)
    logits[1, where] = bad
    for asked in (row_draw(position=77), row_draw(position=77, processors=(lambda ids, x: x,))):
        good, error = sample(logits, [row_draw(position=5), asked])
        assert same([good], sample(logits[:1], [row_draw(position=5)]))
        with pytest.raises(CutawayError, match="position 77 are not finite"):
            raise error


def test_rows_with_processors_are_the_twins_and_their_neighbours_are_not():
    def ban_zero(ids, row):
        row[0] = -np.inf
        return row

    logits = np.stack([draw_noise(300, i, 2.0, None, 0) for i in range(4)])
    asked = [
        row_draw(),
        row_draw(processors=(ban_zero,)),
        row_draw(top_k=3),
        row_draw(temperature=0),
    ]
    assert [bool(r.compiled.native) for r in asked] == [True, False, True, True]
    assert same(sample(logits, asked), draw_by_twin(logits, asked))


def test_a_processor_that_misbehaves_raises_as_before():
    asked = [row_draw(processors=(lambda ids, x: x[:3],))]
    (error,) = sample(np.zeros((1, 9), np.float32), asked)
    with pytest.raises(InputError, match="one logit per token"):
        raise error


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_logits_that_a_stage_might_overflow_are_the_twins():
    logits = np.array([[1e37, -3e38, 2.0]], np.float32)
    asked = row_draw(temperature=0.01, top_p=1)
    assert _native.sample_rows(logits, [asked], "")[0][0] == 2


def test_rows_and_draws_must_be_as_many():
    assert sample(np.zeros((0, 9), np.float32), []) == []
    with pytest.raises(ValueError, match="2 rows of logits for 1 draws"):
        sample(np.zeros((2, 9), np.float32), [row_draw()])


def test_rows_may_be_read_only_views():
    table = draw_noise(900, 1, 3.0, None, 0).reshape(300, 3).T
    table.setflags(write=False)
    asked = [row_draw(), row_draw(top_k=5), row_draw(temperature=0)]
    assert same(sample(table, asked), draw_by_twin(table, asked))
    whole = np.ascontiguousarray(table)
    whole.setflags(write=False)
    assert same(natively(whole[1:], asked[1:], ""), draw_by_twin(table[1:], asked[1:]))


def test_ids_beyond_the_vocabulary_are_nobodys():
    history = ((1, 2, 10**12), [3, 3, 50, 10**12])
    asked = [row_draw(history=history, repetition_penalty=1.5, logit_bias={9: 1.0, 10**12: 5.0})]
    logits = draw_noise(10, 1, 3.0, None, 0)[None]
    assert same(natively(logits, asked, ""), draw_by_twin(logits, asked))


def test_the_output_is_read_anew_at_every_step():
    output = []
    asked = row_draw(history=((1,), output), frequency_penalty=1.0, temperature=0)
    logits = np.array([[3.0, 2.9, 2.8, 0.0]], np.float32)
    drawn = []
    for _ in range(6):
        assert same(natively(logits, [asked], ""), draw_by_twin(logits, [asked]))
        drawn.append(sample(logits, [asked])[0].token_id)
        output.append(drawn[-1])
    assert drawn == [0, 1, 2, 0, 1, 2]


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="instruction set 'sparc'"):
        sample(np.zeros((1, 9), np.float32), [row_draw()], tier="sparc")


def test_threads_may_sample_at_once():
    logits = np.stack([draw_noise(20000, i, 3.0, None, 5) for i in range(8)])
    asked = [row_draw(position=i, repetition_penalty=1.2) for i in range(8)]
    expected, wrong = sample(logits, asked), []

    def work():
        wrong.extend(r for _ in range(20) if not same(r := sample(logits, asked), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


NATIVE_CALLS = {"sample_rows", "read_distributions", "read_rows"}


@pytest.mark.parametrize("missing", sorted(NATIVE_CALLS))
def test_an_older_build_is_no_reason_to_sample_slowly(missing):
    names = NATIVE_CALLS - {missing}
    body = f"""
import sys, types
sys.modules["cutaway.base._native"] = types.SimpleNamespace(**dict.fromkeys({names}))
import cutaway.sampling
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert (
        f"AttributeError: 'types.SimpleNamespace' object has no attribute '{missing}'"
        in done.stderr
    )


def test_without_a_build_the_twin_does_everything():
    body = """
import sys
sys.modules["cutaway.base._native"] = None
import numpy as np
from cutaway.sampling import *
params = SamplingParams(top_k=3)
chain = CompiledChain(build_chain(params), params, ())
logits = np.array([[1.0, np.nan], [1.0, 2.0]], np.float32)
print(sample(logits, [RowDraw(chain, History(), 1, 2, Observe(top=2, after_chain=True))] * 2))
print(read_rows(logits, [0, 1], 1))
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    logits = np.array([[1.0, np.nan], [1.0, 2.0]], np.float32)
    asked = [row_draw(seed=1, position=2, top=2, top_k=3)] * 2
    here = f"{sample(logits, asked)}\n{read_rows(logits, [0, 1], 1)}\n"
    assert done.stdout == here


UPWARDS = 0x800 if platform.machine() == "x86_64" else 0x400000


def test_another_library_s_rounding_mode_changes_no_bit():
    logits = np.stack([draw_noise(5000, i, 3.0, None, 0) for i in range(3)])
    asked = [row_draw(position=i, top=5, repetition_penalty=1.1) for i in range(3)]
    pool, libm = _native.Pool(2), ctypes.CDLL(None)
    expected = sample(logits, asked), read_rows(logits, [1, 2, 3], 5)
    assert libm.fesetround(UPWARDS) == 0
    try:
        for where in (None, pool):
            found = sample(logits, asked, pool=where), read_rows(logits, [1, 2, 3], 5, pool=where)
            assert libm.fegetround() == UPWARDS
            assert found == expected
    finally:
        libm.fesetround(0)


# -- rows that are read ----------------------------------------------------------------------------


SHAPES = [(3.0, None, 0), (1.0, None, 300), (0.01, None, 0), (3.0, 0.25, 5), (400.0, None, 1)]


@settings(max_examples=600)
@given(ROWS, st.data(), TOPS)
def test_every_figure_equals_the_twins(logits, data, top):
    next_id = data.draw(st.one_of(st.none(), st.integers(0, len(logits) - 1)))
    kept = logits.copy()
    for tier in TIERS:
        read = read_rows(logits[None], [next_id], top, tier=tier)
        assert same(read, [read_row(kept, next_id, top)]), tier
    assert (logits.view(np.uint32) == kept.view(np.uint32)).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("vocab", [1, 49152, 262144])
def test_whole_vocabularies(vocab, tier):
    logits = np.stack([draw_noise(vocab, i, *shape) for i, shape in enumerate(SHAPES)])
    best, worst = int(logits[0].argmax()), int(logits[1].argmin())
    ids = [best, worst, 0, vocab - 1, None]
    for top in (0, 1, 20):
        twin = [read_row(row, i, top) for row, i in zip(logits, ids, strict=True)]
        assert same(read_rows(logits, ids, top, tier=tier), twin)


def test_a_draw_and_a_reading_tell_the_same():
    logits = draw_noise(5000, 3, 3.0, None, 4)[None]
    (drawn,) = sample(logits, [row_draw(top=20)])
    (read,) = read_rows(logits, [drawn.token_id], 20)
    assert (read.top, read.logprob) == (drawn.observed.logprobs(20).model, drawn.logprob)


def test_rows_that_are_read_may_be_read_only_views():
    table = draw_noise(900, 1, 3.0, None, 0).reshape(300, 3).T
    table.setflags(write=False)
    twin = [read_row(row, 5, 3) for row in table]
    assert same(read_rows(table, [5, 5, 5], 3), twin)


def test_the_native_routine_refuses_what_it_cannot_read():
    def read(rows, ids, pool=None):
        _native.read_rows(np.zeros(rows, np.float32), np.array(ids, np.int32), 1, "", pool)

    with pytest.raises(ValueError, match="outside the vocabulary"):
        read((1, 3), [3])
    with pytest.raises(ValueError, match="differ in number"):
        read((2, 3), [0])
    with pytest.raises(ValueError, match="out of range"):
        read((1, 0), [-1])
