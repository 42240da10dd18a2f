"""Who asks is served before the next step, in order; a step that fails is done again."""

import gc
import os
from functools import partial
from threading import Event, Thread
from weakref import ref

import pytest

from cutaway.requests.owner import Turns
from support.waiting import wait_until

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM, InputError
from cutaway.errors import CutawayError
from cutaway.requests.owner import Runner
from support.interrupted import bits, check_nothing_is_left

OPTIONS = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


class HeldEngine:
    """An engine whose steps wait to be let go on, and which writes down what happens to it."""

    store = None

    def __init__(self):
        self.happened, self.go, self.steps = [], Event(), 0

    def begin_change(self):
        self.happened.append("begin")

    def end_change(self):
        assert self.happened.pop() == "begin"

    def step(self):
        self.happened.append("step")
        assert self.go.wait(300)
        self.steps += 1

    def take_events(self):
        return []


def test_calls_come_before_the_next_step_in_their_order():
    engine = HeldEngine()
    runner = Runner(engine)
    threads = [Thread(target=runner.wait, args=(lambda: engine.steps >= 3,))]
    threads[0].start()
    wait_until(lambda: engine.happened)
    for number in range(8):
        call = partial(engine.happened.insert, -1, number)
        threads.append(Thread(target=runner.call, args=(call,)))
        threads[-1].start()
        wait_until(lambda n=number: len(runner._turns._line) == n + 2)
    engine.go.set()
    for thread in threads:
        thread.join(300)
    assert engine.happened == ["step", *range(8), "step", "step"]


class CountingTurns(Turns):
    """Counts the steps that were begun while a thread stood in line."""

    def __init__(self, engine):
        super().__init__()
        self._engine, self._joined, self.waits = engine, {}, []

    def take(self, function, ticket):
        def turn():
            began = self._engine.steps
            self.waits.append(began - self._joined.pop(id(ticket), began))
            return function()

        return super().take(turn, ticket)

    def _ahead(self, ticket):
        ahead = super()._ahead(ticket)
        self._joined[id(ticket)] = self._engine.steps
        return ahead


@pytest.mark.parametrize("threads", [1, 8, 32])
def test_no_call_waits_for_more_than_two_steps(tiny_path, tmp_path, threads):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        llm.owner._turns = turns = CountingTurns(llm.engine)
        stop = Event()

        def write(seed):
            while not stop.is_set():
                llm.generate("ab", seed=seed, **OPTIONS)

        writing = [Thread(target=write, args=(seed,)) for seed in range(threads)]
        for thread in writing:
            thread.start()
        expected = None
        for i in range(6):
            text = llm.stream("ab", seed=3, **OPTIONS).finish()
            expected = expected or bits(text)
            assert bits(text) == expected
            llm.save_prefix(tmp_path / f"{i}.prefix", "ab" * 40)
            assert next(llm.stream("aab", **OPTIONS)).index == 0
        stop.set()
        for thread in writing:
            thread.join(60)
        assert len(turns.waits) > 100
        assert max(turns.waits) <= 2
        check_nothing_is_left(llm)


def test_a_step_that_fails_is_done_again(tiny_path, monkeypatch):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        expected = bits(llm.generate("ab", seed=3, **OPTIONS))
        stream = llm.stream("ab", seed=3, **OPTIONS)
        next(stream)
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(type(llm.backend), "run", _without_memory)
            next(stream)
        assert bits(stream.finish()) == expected
        check_nothing_is_left(llm)


def _without_memory(*_):
    raise MemoryError


def test_a_processor_that_raises_stop_iteration_ends_its_text_alone(tiny_path):
    numbers = iter([1, 2])

    def tired(_tokens, logits):
        next(numbers)
        return logits

    with LLM(tiny_path, threads=1, progress=False) as llm:
        other = llm.stream("ab", seed=3, **OPTIONS)
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            llm.generate("ab", processors=[tired], **OPTIONS)
        assert len(other.finish().token_ids) == 12


def test_closing_has_one_meaning_for_all_who_read(tiny_path):
    llm = LLM(tiny_path, threads=1, progress=False)
    said = []

    def read(seed):
        try:
            while True:
                llm.generate("ab", seed=seed, max_tokens=200, ignore_eos=True)
        except CutawayError as error:
            said.append(str(error))

    threads = [Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: llm.engine.running)
    llm.close()
    for thread in threads:
        thread.join(60)
    assert said == ["tiny is closed: load the model again"] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_writes_with_many_threads(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        expected = bits(llm.generate("ab", seed=3, **OPTIONS))
        for _ in range(20):
            assert _in_child(lambda: _all_write(llm, expected)) == 0
        assert bits(llm.generate("ab", seed=3, **OPTIONS)) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_in_the_middle_of_another_threads_turn_is_told_in_a_sentence(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        inside, go, let_go = Event(), Event(), []

        def hold():
            inside.set()
            let_go.append(go.wait(300))

        thread = Thread(target=llm.owner.call, args=(hold,))
        thread.start()
        assert inside.wait(300)

        def check():
            with pytest.raises(InputError, match="forked while another thread was writing"):
                llm.generate("ab")

        assert _in_child(check) == 0
        go.set()
        thread.join(300)
        assert let_go == [True]
        assert llm.generate("ab", **OPTIONS).token_ids


def _all_write(llm, expected):
    wrong = []

    def write():
        if bits(llm.generate("ab", seed=3, **OPTIONS)) != expected:
            wrong.append(1)

    threads = [Thread(target=write, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def _in_child(work):
    """The exit status of a forked child that does some work: 0 where nothing is raised."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_texts_that_a_close_ended_do_not_keep_the_model(tiny_path):
    """The error of a text leads by its traceback to its reader, which must not be held for ever."""
    llm = LLM(tiny_path, threads=1, progress=False)
    stream = llm.stream("ab", max_tokens=200, ignore_eos=True)
    next(stream)
    llm.close()
    with pytest.raises(InputError, match="is closed"):
        next(stream)
    kept = ref(llm.model)
    del llm, stream
    gc.collect()
    assert kept() is None


def test_an_interrupted_stream_ends_though_its_traceback_is_kept(tiny_path, monkeypatch):
    """As a notebook keeps it, in sys.last_traceback."""
    with LLM(tiny_path, threads=1, progress=False) as llm:
        stream = llm.stream("ab", max_tokens=200, ignore_eos=True)
        next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(type(llm.engine), "step", _interrupted)
            with pytest.raises(KeyboardInterrupt) as kept:
                for _ in stream:
                    pass
        assert kept.tb is not None
        assert llm.engine.is_idle
        assert list(stream) == []


def _interrupted(_):
    raise KeyboardInterrupt
