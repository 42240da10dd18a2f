"""The engine in any order of adding, stepping, aborting and scoring.

Whatever the company, the chunks, the queue and the cache: every sequence writes what the
definition of the loop writes for it alone, and all blocks come back.
"""

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutaway.engine import FinishReason, Request, Score, Scored
from cutaway.sampling.observe import read_row
from support.engine_definition import write_by_definition
from support.engine_mock import (
    check,
    forget_cached,
    make_engine,
    read_written,
    run_to_end,
)  # fmt: skip
from support.engine_requests import CONTEXT, PROMPTS, REQUESTS, often_wrong
from support.mock_backend import narrow


class EngineMachine(RuleBasedStateMachine):
    """``requests`` and ``sequences`` are all that ever came, by sequence id."""

    @initialize(
        rows=st.integers(1, 7), block=st.integers(1, 5), texts=st.integers(1, 3),
        guess_rows=st.integers(0, 9), running=st.integers(1, 6), prefix_cache=st.booleans(),
        window=st.sampled_from([0, 1, 3, 8, 20]), has_state=st.booleans(),
    )  # fmt: skip
    def make(self, rows, block, texts, guess_rows, running, prefix_cache, window, has_state):
        self.block = block
        self.engine = make_engine(
            narrow, context=CONTEXT, kv_blocks=texts * -(-CONTEXT // block), block=block,
            draft=often_wrong, rows=rows, max_draft_rows=guess_rows, max_num_seqs=running,
            prefix_cache=prefix_cache, window=window, has_state=has_state,
        )  # fmt: skip
        self.requests, self.sequences, self.steps, self.scored = [], [], [], []

    @rule(request=REQUESTS, samples=st.sampled_from([1, 1, 2, 3]))
    def add(self, request, samples):
        added = self.engine.add(request.to_request(), samples)
        self.requests += [replace(request, params=s.request.sampling) for s in added]
        self.sequences += added

    @rule(count=st.integers(1, 6))
    def step(self, count):
        backend, windows = self.engine.backend, self.engine.blocks.windows
        for _ in range(count):
            before = len(backend.runs)
            self.steps += self.engine.step()
            if windows and len(backend.runs) > before:
                assert len(backend.windows) <= max(windows.max_stored, windows.read)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data):
        sequence = data.draw(st.sampled_from(self.sequences))
        before = sequence.finish_reason
        self.engine.abort(sequence)
        self.steps += self.engine.take_events()
        assert sequence.finish_reason == (before or FinishReason.ABORTED)
        assert sequence not in self.engine.running
        assert sequence not in self.engine.waiting

    @rule()
    def forget_what_is_cached(self):
        forget_cached(self.engine.blocks)

    @rule(tokens=PROMPTS)
    def score(self, tokens):
        """Goes along with the others, and is checked at the end."""
        asked = Request(prompt_token_ids=tokens, decoder=Score(logits_from=0))
        self.scored += self.engine.add(asked)

    @invariant()
    def every_block_is_accounted_for(self):
        check(self.engine)
        assert not any(
            s.memory.blocks for s in [*self.sequences, *self.scored] if s not in self.engine.running
        )

    @invariant()
    def the_queues_are_in_order(self):
        for queue in (self.engine.running, self.engine.waiting):
            keys = [s.key for s in queue]
            assert keys == sorted(keys)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        run_to_end(self.engine, self.steps)
        for request, sequence in zip(self.requests, self.sequences, strict=True):
            self.check(request, sequence)
        for sequence in self.scored:
            rows = [e.logits for e in self.steps if isinstance(e, Scored) and e.id == sequence.id]
            tokens = sequence.prompt_token_ids
            every = np.array([narrow(tokens[: i + 1]) for i in range(len(tokens))])
            np.testing.assert_array_equal(np.concatenate(rows), every)

    def check(self, request, sequence):
        alone = write_by_definition(request, narrow, context=CONTEXT)
        wrote = read_written(sequence, self.steps)
        if sequence.finish_reason == FinishReason.ABORTED:
            count = len(wrote.token_ids)
            assert wrote.token_ids == alone.token_ids[:count]
            assert wrote.fingerprints == alone.fingerprints[:count]
            assert alone.text.startswith(wrote.text)
        else:
            assert wrote == alone
            assert sequence.prompt_scores == self.prompt_logprobs(request)

    def prompt_logprobs(self, request):
        """By definition: of every token after the first, given all before it."""
        top, prompt = request.observe.prompt_top, request.prompt
        asked = range(1, len(prompt)) if top else ()
        return [read_row(narrow(prompt[:i]), prompt[i], top) for i in asked]


EngineMachine.TestCase.settings = settings(stateful_step_count=25)
TestEngine = EngineMachine.TestCase
