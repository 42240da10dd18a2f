"""Who asks is served before the next step, in order; a step that fails is done again."""

import gc
import os
from _thread import RLock
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import Any
from weakref import ref

import pytest

from cutaway.requests.owner import Turns, pass_through
from support.waiting import wait_until

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM, InputError
from cutaway.errors import CutawayError
from cutaway.requests.owner import Runner
from support.interrupted import bits, check_nothing_is_left, interrupt_at, lines_of
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_llama import write_tiny_llama

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


# -- turns -----------------------------------------------------------------------------------------

# Threads have their turns in the order in which they came, whatever is thrown into them.


class Line:
    """Threads that take turns at writing down their names; ``open`` lets the first one go on."""

    def __init__(self):
        self.turns, self.order, self.open, self.threads = Turns(), [], Event(), []

    def join(self, name, function=lambda: None):
        """A new thread joins the line; it is there when this returns."""

        def turn():
            self.order.append(name)
            function()

        ready, ticket = Event(), RLock()

        def run():
            with ticket:
                ready.set()
                self.turns.take(turn, ticket)

        self.threads.append(Thread(target=run))
        self.threads[-1].start()
        assert ready.wait(300)
        wait_until(lambda: name in self.order or ticket in self.turns._line)

    def finish(self):
        self.open.set()
        for thread in self.threads:
            thread.join(300)
            assert not thread.is_alive()


def test_the_order_is_that_of_arrival():
    line = Line()
    line.join("first", line.open.wait)
    for name in range(12):
        line.join(name)
    line.finish()
    assert line.order == ["first", *range(12)]
    assert not line.turns._line


def test_an_exception_ends_a_turn():
    turns, ticket = Turns(), RLock()
    with pytest.raises(ZeroDivisionError), ticket:
        turns.take(lambda: 1 // 0, ticket)
    assert not turns.is_mine
    line = Line()
    line.turns = turns
    line.join("next", line.open.wait)
    line.finish()
    assert line.order == ["next"]


def test_a_ticket_that_was_left_in_the_line_holds_nobody_up():
    """As by an exception between joining the line and waiting in it."""
    line = Line()
    line.join("first", line.open.wait)
    line.turns._line.append(RLock())  # of a thread that was thrown out
    line.join("second")
    line.finish()
    assert line.order == ["first", "second"]
    assert not line.turns._line


def test_a_turn_is_known_to_its_thread_alone():
    turns, ticket, seen = Turns(), RLock(), []
    with ticket:
        turns.take(lambda: seen.append(turns.is_mine), ticket)
    line = Line()
    line.join("first", line.open.wait)
    seen.append(line.turns.is_mine)
    line.finish()
    assert seen == [True, False]


def test_who_passes_through_waits_until_the_thread_has_left():
    line, passed = Line(), []
    line.join("first", line.open.wait)
    [ticket] = line.turns._line
    waiting = Thread(target=lambda: passed.append(pass_through(ticket)))
    waiting.start()
    assert not passed
    line.finish()
    waiting.join(300)
    assert passed == [None]


# -- interrupts ------------------------------------------------------------------------------------

# An exception at any line of the engine ends one text: others have their bits, nothing is left.


INTERRUPTED: Any = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True, "seed": 5}
OTHER: Any = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True, "seed": 9}
PROMPT = "ab" * 20


def stream_and_close(llm: LLM) -> None:
    with llm.stream(PROMPT, **INTERRUPTED) as stream:
        next(stream)


WORK: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate([PROMPT, "b"], n=2, **INTERRUPTED),
    "stream": stream_and_close,
    "drafts": lambda llm: llm.generate("ab" * 8, speculate="ngram", **INTERRUPTED),
    "regex": lambda llm: llm.generate("a", regex="[ab]{3,9}", max_tokens=6, seed=5),
    "embed": lambda llm: llm.embed(["ab", "aab"]),
    "logits": lambda llm: llm.logits([3, 4, 5] * 12),
    "each": lambda llm: list(llm.generate_each(["ab", "b"], **INTERRUPTED)),
}
"""By name: what is interrupted."""


WINDOW = {"llama.attention.sliding_window": 24, "llama.attention.sliding_window_pattern": 2}
MODELS: dict[str, Any] = {
    "attention": lambda path: write_tiny_llama(path, context=512),
    "window": lambda path: write_tiny_llama(path, context=512, metadata=WINDOW),
    "state": write_tiny_granite_hybrid,
}
"""By name: what writes it, by what its layers keep of a text."""


@pytest.fixture(scope="module", params=MODELS)
def llm(request, tmp_path_factory):
    path = MODELS[request.param](tmp_path_factory.mktemp("interrupted") / "tiny.gguf")
    with LLM(path, threads=1, progress=False) as llm:
        yield llm


def interrupt_lines(llm, work, every, write=LLM.generate):
    """Interrupt each n-th line that some work runs, its first time and in the middle.

    Each time, another text goes on meanwhile, the model works, and nothing stays behind.
    """
    expected, right = bits(write(llm, "aab", **OTHER)), bits(write(llm, PROMPT, **INTERRUPTED))
    denoise = {} if write is LLM.generate else {"denoise": True}
    lines = lines_of(lambda: work(llm))
    interrupted = 0
    for line, times in sorted(lines.items())[::every]:
        for time in {1, (times + 1) // 2}:
            other = llm.stream("aab", **OTHER, **denoise)
            next(other)
            interrupted += interrupt_at(line, time, lambda: work(llm))
            assert bits(write(llm, PROMPT, **INTERRUPTED)) == right
            assert bits(other.finish()) == expected
            check_nothing_is_left(llm)
    print(f"{len(lines)} lines, interrupted {interrupted} times")
    assert interrupted > len(lines) // every // 2


@pytest.mark.parametrize("name", WORK)
def test_at_some_lines(llm, name):
    interrupt_lines(llm, WORK[name], every=83)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_at_every_line(llm, name):
    interrupt_lines(llm, WORK[name], every=1)


def interrupt_canvas(path, every):
    with LLM(path, threads=1, progress=False) as llm:
        work = partial(LLM.denoise, llm, PROMPT, block=3, **INTERRUPTED)
        interrupt_lines(llm, lambda _: work(), every, LLM.denoise)


def test_a_canvas_at_some_lines(tiny_diffusion_path):
    interrupt_canvas(tiny_diffusion_path, every=41)


@pytest.mark.slow
def test_a_canvas_at_every_line(tiny_diffusion_path):
    interrupt_canvas(tiny_diffusion_path, every=1)
