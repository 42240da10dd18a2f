"""A program that misuses the Python API at random, and reports the outcomes.

    PYTHONPATH=tests python -m support.misuse MODEL SEED CALLS

Calls get values of wrong kinds, out of range, or hostile in themselves. Streams are closed, dropped
and read again in any order. Processors raise, return junk and call the model that calls them. A
call may return, or raise an error without a `fault`. Between calls the model must generate the text
of a fresh one. The last line of standard output is JSON; standard error names each call before it
is made, so that a crash has a place.
"""

# mypy: disable-error-code="arg-type,assignment,call-overload"
# Wrong types are the point.

import asyncio
import copy
import gc
import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from faulthandler import dump_traceback_later
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cutaway import LLM, AsyncLLM, CutawayError, SamplingParams
from cutaway.requests.keywords import KEYWORDS
from cutaway.text.tools import Tool
from support.hostile_values import JUNK, SOUND, Mistake

HANG_S = 120
LONGEST = 660  # the names of all options fit
"""The most characters of an error's sentence, whose quoted values are cut."""
OPTIONS = [*KEYWORDS, "no_such_option"]
LOADING = ["backend", "threads", "context", "kv_tokens", "prefix_cache",
           "max_num_seqs", "max_waiting", "step_ms", "quantize", "kv", "offload_folder",
           "progress"]  # fmt: skip
TOOL_FIELDS = ["tools", "tools", "tool_choice", "parallel_tool_calls", "run_tools", "max_rounds"]
EXPECTED = {"max_tokens": 6, "seed": 1, "temperature": 1.0, "ignore_eos": True}


class Misuse:
    """One model, its open streams, and the outcome of every call."""

    def __init__(self, path: str, seed: int) -> None:
        self.random, self.path = Random(seed), path
        self.llm = LLM(path, threads=2, context=64, progress=False)
        self.expected = self.llm.generate("ab", **EXPECTED).token_ids
        self.open: list[Any] = []
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.actions: list[Callable[[], object]] = [
            self.generate, self.generate, self.begin, self.begin, self.read, self.read, self.read,
            self.next_result, self.chat, self.text, self.logits, self.process, self.process,
            self.params,
            self.load, self.duplicate, self.asynchronous, self.drop, self.look, self.close,
            self.keep, self.score, self.score,
        ]  # fmt: skip

    # -- the calls ---------------------------------------------------------------------------

    def pick(self, share: float = 0.5) -> Any:
        """Return a value, which is sound with probability ``share``."""
        values = SOUND if self.random.random() < share else JUNK
        return self.random.choice(values)()

    def options(self) -> dict[str, Any]:
        """Return sound options, with up to three of any kind."""
        names = self.random.choices(OPTIONS, k=self.random.randrange(4))
        return {"max_tokens": 4, "seed": 1} | {name: self.pick(0.1) for name in names}

    def generate(self) -> object:
        return self.llm.generate(self.pick(), **self.options())

    def begin(self) -> None:
        """Open streams, and keep them for later."""
        if self.random.random() < 0.3:
            self.open += self.llm.streams(self.pick(0.8), **self.options())
        else:
            self.open.append(self.llm.stream(self.pick(0.8), **self.options()))

    def read(self) -> object:
        """Call any method of a stream, in any state."""
        if not self.open:
            return None
        stream = self.random.choice(self.open)
        verb = self.random.choice(
            ["__next__", "__next__", "close", "stop", "finish", "completion", "__enter__"]
        )
        return getattr(stream, verb, str)()  # results have fewer

    def drop(self) -> None:
        self.random.shuffle(self.open)
        del self.open[self.random.randrange(4) :]
        if self.random.random() < 0.2:
            gc.collect()

    def next_result(self) -> None:
        requests = self.pick(0.4)
        if self.random.random() < 0.3:
            requests = (self.llm.generate("ab", max_tokens=1) for _ in range(2))  # calls the model
        results = self.llm.generate_each(requests, **self.options())
        if self.random.random() < 0.3:
            self.open.append(results)
        for _ in range(self.random.randrange(4)):
            next(results, None)

    def chat(self) -> object:
        names = self.random.choices(TOOL_FIELDS, k=self.random.randrange(4))
        options = {name: self.pick(0.0) for name in names}
        if "tools" in options and self.random.random() < 0.7:
            options["tools"] = [options["tools"], sum, {"type": "function"}, Tool("a")]
            self.random.shuffle(options["tools"])
        return self.llm.chat(self.pick(0.0), **options, **self.options())

    def text(self) -> object:
        verb = self.random.choice(["tokenize", "detokenize", "chat_prompt"])
        arguments = [self.pick(0.4)] * self.random.choice([0, 1, 1, 1, 2, 5])
        return getattr(self.llm, verb)(*arguments)

    def logits(self) -> object:
        return self.llm.logits(self.pick(), *([self.pick(0)] * self.random.randrange(2)))

    def score(self) -> object:
        verb = self.random.choice(["score", "score", "likelihood", "score_each"])
        sound = self.random.random() < 0.5
        if verb == "likelihood":
            options = {} if sound else {self.random.choice(["window", "before"]): self.pick(0.2)}
            return self.llm.likelihood(self.pick(), **options)
        if verb == "score":
            return self.llm.score(self.pick(), ["b", " ab"] if sound else self.pick())
        pairs = [("ab", self.pick()), (self.pick(), "b")] if sound else self.pick()
        return [*self.llm.score_each(pairs)]

    def params(self) -> object:
        name = self.random.choice([*(field.name for field in fields(SamplingParams)), "x"])
        return SamplingParams(**{name: self.pick(0.2)})

    def load(self) -> object:
        name = self.random.choice(LOADING)
        model = self.path if self.random.random() < 0.8 else self.pick(0.2)
        if model is None:
            return None  # the default model, and nothing is wrong with it
        options: dict[str, Any] = {"threads": 1, "context": 32, "progress": False}
        return LLM(model, **options | {name: self.pick(0.1)})

    def keep(self) -> object:
        """Save a prefix to a file or restore it; the prompt may be no prompt."""
        place = Path(self.path).with_name("kept.prefix") if self.random.random() < 0.8 else None
        if place is None and isinstance(place := self.pick(0), (str, bytes, Path)):
            return None  # which might be a file's name here
        if self.random.random() < 0.4:
            return self.llm.restore_prefix(place)
        keywords = {"special": self.pick(0), "messages": self.pick(0), "compute": self.pick(0)}
        names = self.random.sample([*keywords], self.random.randrange(2))
        options = {name: keywords[name] for name in names}
        prompt = self.random.choice([None, "ab" * 40, [5] * 40, self.pick(0)])
        return self.llm.save_prefix(place, prompt, **options)

    def look(self) -> object:
        """Call repr, str, dir and bool of a model, a stream or settings."""
        target = self.random.choice([self.llm, *self.open, SamplingParams()])
        number = hash(target) if target is self.llm else None
        return repr(target), str(target), dir(target), number, bool(target)

    def duplicate(self) -> object:
        target = self.random.choice([self.llm, *self.open, self.llm.generate("ab", max_tokens=1)])
        copy_it: Callable[[Any], object] = self.random.choice(
            [copy.deepcopy, pickle.dumps, copy.copy]
        )
        return copy_it(target)

    def process(self) -> object:
        """Generate with a processor that misbehaves."""
        count = iter(range(self.random.randrange(4), 1000))
        deed = self.random.choice(
            [self.deed_raise, self.deed_exit, self.deed_junk, self.deed_shape, self.deed_generate,
             self.deed_read, self.deed_drop, self.deed_overwrite]
        )  # fmt: skip

        def processor(tokens: list[int], logits: Any) -> Any:
            if next(count) < 3:
                return logits
            done = deed(tokens, logits)
            return logits if done is None else done

        options = {"processors": [processor], "max_tokens": 8, "ignore_eos": True}
        if self.random.random() < 0.5:
            self.open.append(self.llm.stream("ab", **options))
            return next(self.open[-1])
        return self.llm.generate(["ab", "b"], **options)

    def deed_raise(self, *_: Any) -> None:
        raise self.random.choice([Mistake("own"), StopIteration(5), GeneratorExit()])

    def deed_exit(self, *_: Any) -> None:
        sys.exit("own")

    def deed_junk(self, *_: Any) -> Any:
        return self.pick(0.1)

    def deed_shape(self, _tokens: list[int], logits: Any) -> Any:
        return self.random.choice(
            [logits[:-1], logits[None], logits * np.nan, logits.astype(object), logits.tolist(),
             logits - np.inf, np.broadcast_to(logits[0], logits.shape), logits.astype("complex64")]
        )  # fmt: skip

    def deed_generate(self, *_: Any) -> None:
        self.llm.generate("ab", max_tokens=1)

    def deed_drop(self, *_: Any) -> None:
        self.drop()

    def deed_read(self, *_: Any) -> None:
        self.read()

    def deed_overwrite(self, tokens: list[int], logits: Any) -> None:
        tokens.clear()
        logits.flags.writeable = True
        logits[:] = 0

    def asynchronous(self) -> None:
        """Use an engine with a thread of its own, and leave it in any state."""
        model = AsyncLLM(LLM(self.path, threads=1, context=64, progress=False))
        prompt, options, way = self.pick(0.7), self.options(), self.random.randrange(5)

        async def main() -> None:
            if way == 0:
                await model.generate(prompt, **options)
            elif way == 1:
                async for _ in model.stream(prompt, **options):
                    break  # dropped
            elif way == 2:
                task = asyncio.create_task(model.generate("ab", max_tokens=60))
                await asyncio.sleep(0)
                task.cancel()
            elif way == 3:
                await model.aclose()
                await model.generate("ab")
            else:
                task = asyncio.create_task(model.generate("ab", max_tokens=60))
                await asyncio.sleep(0)
                await model.drain(0)
                await task

        try:
            asyncio.run(main())
        finally:
            asyncio.run(model.aclose())

    def close(self) -> object:
        """Close a model while it generates, and use it afterwards."""
        llm = LLM(self.path, threads=1, context=64, progress=False)
        stream = llm.stream("ab")
        for _ in range(self.random.randrange(3)):
            next(stream)
        llm.close()
        use: Callable[[], object] = self.random.choice(
            [stream.__next__, stream.close, stream.completion, llm.close, partial(llm.logits, [5]),
             partial(llm.generate, "ab"), partial(AsyncLLM, llm)]
        )  # fmt: skip
        return use()

    # -- the outcomes ------------------------------------------------------------------------

    def call(self, number: int) -> None:
        action = self.random.choice(self.actions)
        name = action.__name__
        print(number, name, file=sys.stderr, flush=True)
        dump_traceback_later(HANG_S, exit=True)
        try:
            action()
        except BaseException as error:
            self.outcomes[f"{name} raised"] += 1
            if problem := fault(error):
                self.faults.append(f"{number} {name}: {problem}")
        else:
            self.outcomes[f"{name} answered"] += 1
        if number % 50 == 49:
            self.check(number)

    def check(self, number: int) -> None:
        """Check that all blocks are free, and that the text is that of a fresh model."""
        for stream in self.open:
            stream.close()
        self.open.clear()
        try:
            if self.llm.generate("ab", **EXPECTED).token_ids != self.expected:
                self.faults.append(f"{number}: another text than before")
        except BaseException as error:
            self.faults.append(
                f"{number}: {type(error).__name__}: {error}, and nobody asked for it"
            )
        engine = self.llm.engine
        if engine.running or engine.waiting or engine.blocks.free != engine.blocks.count:
            self.faults.append(f"{number}: something is left in the engine")


def fault(error: BaseException) -> str | None:
    """Return the fault of an error; None if it is the caller's own, or one short sentence."""
    expected_errors = (Mistake, SystemExit, StopIteration, GeneratorExit)
    if isinstance(error, expected_errors) or isinstance(error.__cause__, expected_errors):
        return None
    sentence = f"{type(error).__name__}: {error}"
    trace, depth = error.__traceback__, 0
    while trace:
        depth = depth + 1 if "cutaway" in trace.tb_frame.f_globals.get("__name__", "") else depth
        last, trace = trace, trace.tb_next
    if isinstance(error, CutawayError):
        return sentence[:LONGEST] if "\n" in str(error) or len(str(error)) > LONGEST else None
    if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)) and not depth:
        return None  # of Python itself: arguments that no such function takes, or a local object
    place = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
    return f"{sentence[:LONGEST]} at {place}"


def main(path: str, seed: str, calls: str) -> None:
    misuse = Misuse(path, int(seed))
    for number in range(int(calls)):
        misuse.call(number)
    misuse.check(int(calls))
    print(json.dumps({"outcomes": misuse.outcomes, "faults": misuse.faults}))


if __name__ == "__main__":
    main(*sys.argv[1:])
