"""The engine in any order of adding, stepping, aborting and scoring.

Whatever the company, the chunks, the queue and the cache: every sequence writes what the
definition of the loop writes for it alone, and all blocks come back.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutaway.engine import FinishReason, StopParams
from cutaway.engine import engine as engine_module
from cutaway.sampling import SamplingParams
from engine_mock import (
    END,
    LETTERS,
    Request,
    make_engine,
    narrow,
    patch_sizes,
    run_to_end,
    write_by_definition,
    written,
)

CONTEXT = 24

PROMPTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=CONTEXT - 1).map(tuple)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.7, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 3),
)
STOPS = st.builds(
    StopParams,
    max_tokens=st.integers(1, CONTEXT),
    stop=st.sampled_from([(), ("ab",), ("é", "aa"), ("bbb", "aé")]),
    stop_token_ids=st.sampled_from([(), (), (ord("b"),), (END,)]),
    ignore_eos=st.booleans(),
)
REQUESTS = st.builds(Request, PROMPTS, SAMPLING, STOPS, st.booleans())


class EngineMachine(RuleBasedStateMachine):
    """``requests`` and ``sequences`` are all that ever came, by sequence id."""

    @initialize(rows=st.integers(1, 7), block=st.integers(1, 5), texts=st.integers(1, 3))
    def make(self, rows, block, texts):
        self.patch = pytest.MonkeyPatch()
        patch_sizes(self.patch, engine_module, rows, block)
        count = texts * -(-CONTEXT // block)
        self.engine = make_engine(narrow, context=CONTEXT, kv_blocks=count)
        self.requests, self.sequences, self.steps = [], [], []

    @rule(request=REQUESTS)
    def add(self, request):
        self.requests.append(request)
        self.sequences.append(request.add_to(self.engine))

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.steps += self.engine.step()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data):
        sequence = data.draw(st.sampled_from(self.sequences))
        before = sequence.finish_reason
        self.engine.abort(sequence)
        assert sequence.finish_reason == (before or FinishReason.ABORTED)
        assert sequence not in self.engine.running
        assert sequence not in self.engine.waiting

    @rule(tokens=PROMPTS)
    def score(self, tokens):
        if -(-len(tokens) // engine_module.KV_BLOCK) <= self.engine.pool.free:
            every = np.array([narrow(tokens[: i + 1]) for i in range(len(tokens))])
            scored = self.engine.score(tokens)
            np.testing.assert_array_equal(scored.view(np.uint32), every.view(np.uint32))

    @invariant()
    def running_sequences_hold_all_blocks_that_are_not_free(self):
        held = [b for s in self.engine.running for b in s.blocks]
        assert len(set(held)) == len(held)
        assert len(held) + self.engine.pool.free == self.engine.pool.count
        assert not any(s.blocks for s in self.sequences if s not in self.engine.running)

    @invariant()
    def nobody_overtakes_in_the_queue(self):
        ids = [s.id for s in (*self.engine.running, *self.engine.waiting)]
        assert ids == sorted(ids)

    def teardown(self):
        run_to_end(self.engine, self.steps)
        self.patch.undo()
        assert self.engine.pool.free == self.engine.pool.count
        for request, sequence in zip(self.requests, self.sequences, strict=True):
            self.check(request, sequence)

    def check(self, request, sequence):
        alone = write_by_definition(request, narrow, context=CONTEXT)
        wrote = written(sequence, self.steps)
        if sequence.finish_reason == FinishReason.ABORTED:
            count = len(wrote.token_ids)
            assert wrote.token_ids == alone.token_ids[:count]
            assert wrote.fingerprints == alone.fingerprints[:count]
            assert alone.text.startswith(wrote.text)
        else:
            assert wrote == alone


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestEngine = EngineMachine.TestCase
