"""cutaway in a hostile host program: threads, interrupts, forks and closes, at random and at once.

    python bench/host_soak.py [-m toy-writer] [--minutes 1] [--threads 6] [--seed 0] [--json]

Threads share a model. Each writes, streams, drops a stream, embeds or is refused, at random.
Exceptions are thrown into the threads at random bytecodes, and some threads close the model and
load it again. Meanwhile the process forks, and the children write with several threads. Each text
is compared with the text that the model wrote alone, before.

The exit code is 1 if a text differs, an unexpected error is raised, or a sequence or a KV block is
left at the end.
"""

import ctypes
import gc
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from random import Random
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

from cutaway import LLM, InputError
from load import rss

PROMPTS = ("The old house by the sea was", "Once", "She said that it was not, and then" * 4)
OPTIONS: Any = {"max_tokens": 16, "ignore_eos": True}
SEEDS = 4
CHILD_THREADS = 4


class Interrupt(BaseException):
    """The exception that is thrown into threads."""


class Host:
    """A model that threads share, and the results."""

    def __init__(self, args: Namespace) -> None:
        self.args, self.counts, self.faults = args, Counter[str](), list[str]()
        self.loading, self.end = Lock(), 0.0
        self.llm = self.load()
        self.right = {
            (prompt, seed): self.write(prompt, seed) for prompt in PROMPTS for seed in range(SEEDS)
        }
        self.memory: list[int] = []

    def load(self) -> LLM:
        """Load the model."""
        return LLM(self.args.model, threads=1, progress=False)

    def write(self, prompt: str, seed: int) -> tuple[Any, ...]:
        """Write a text; return it and its fingerprint."""
        text = self.llm.generate(prompt, seed=seed, **OPTIONS)
        return text.text, text.fingerprint

    # -- actions of a thread -----------------------------------------------------------------

    def check(self, random: Random) -> None:
        """Write a text, and compare it with the text that was written alone."""
        key = random.choice(PROMPTS), random.randrange(SEEDS)
        text = self.write(*key)
        self.counts["texts"] += 1
        if text != self.right[key]:
            self.faults.append(f"{key} differs: {text}")

    def leave(self, random: Random) -> None:
        """Leave a stream at a random token, closed or dropped."""
        stream = self.llm.stream(random.choice(PROMPTS), **OPTIONS)
        for _ in range(random.randrange(8)):
            next(stream)
        if random.random() < 0.5:
            stream.close()

    def embed(self, random: Random) -> None:
        """Embed a text."""
        self.llm.embed([random.choice(PROMPTS)])

    def err(self, _: Random) -> None:
        """Send a request that must be refused."""
        try:
            self.llm.generate("a", max_tokens=-1)
        except InputError:
            return
        self.faults.append("max_tokens=-1 was taken")

    def reopen(self, random: Random) -> None:
        """Now and then, close the model while other threads write, and load it again."""
        if random.random() < 0.02:
            with self.loading:
                self.llm.close()
                self.llm = self.load()
                self.counts["closes"] += 1

    def work(self, seed: int) -> None:
        """Do one action after the other, whatever exceptions are thrown in."""
        random = Random(seed)
        acts: list[Callable[[Random], None]] = [self.check, self.leave, self.embed, self.err]
        while monotonic() < self.end:
            try:
                while monotonic() < self.end:
                    random.choice([*acts, self.check, self.reopen])(random)
            except Interrupt:
                self.counts["interrupts"] += 1
            except InputError as error:
                known = "is closed: load the model again" in str(error)
                self.counts["closed"] += known
                if not known:
                    self.faults.append(str(error))
                self._open_again()
            except Exception as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def _open_again(self) -> None:
        """Load the model again if an interrupt came between a close and the next load."""
        with self.loading:
            try:
                _ = self.llm.engine
            except InputError:
                self.llm = self.load()

    # -- interrupts and forks ----------------------------------------------------------------

    def run(self) -> None:
        """Throw exceptions into the threads, and fork, until the time is up."""
        self.end = monotonic() + 60 * self.args.minutes
        workers = [Thread(target=self._survive, args=(i,)) for i in range(self.args.threads)]
        for worker in workers:
            worker.start()
        random, shown = Random(self.args.seed), monotonic()
        while monotonic() < self.end:
            sleep(random.random() * 0.05)
            worker = random.choice(workers)
            # No exception while a thread loads: loading starts a thread, into which CPython 3.11
            # may throw it. That thread would never begin, and the loading one would wait for ever.
            if worker.is_alive() and not self.loading.locked():
                throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
                throw(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(Interrupt))
            if random.random() < 0.05:
                self.fork()
            if monotonic() - shown > self.args.minutes * 6:  # ten times in all
                shown = monotonic()
                self.memory.append(rss())
                print(f"{dict(self.counts)}, {self.memory[-1] >> 20} MB", file=sys.stderr)
        for worker in workers:
            worker.join()

    def _survive(self, seed: int, depth: int = 8) -> None:
        """Work, also after interrupts outside of the actions, this method's own included."""
        while monotonic() < self.end:
            try:
                if depth:
                    self._survive(seed, depth - 1)
                else:
                    self.work(seed)
            except Interrupt:
                self.counts["interrupts"] += 1

    def fork(self) -> None:
        """Have a child write with several threads; the fork may interrupt another thread's step."""
        if (child := os.fork()) == 0:
            os._exit(self._in_child())
        _, status = os.waitpid(child, 0)
        told = {0: "forks", 2: "forks in another's turn"}.get(os.waitstatus_to_exitcode(status))
        self.counts[told or "forks"] += 1
        if told is None:
            self.faults.append(f"a child ended with {status}")

    def _in_child(self) -> int:
        answers: list[int] = []

        def write(seed: int) -> None:
            try:
                text = self.write(PROMPTS[0], seed)
                answers.append(0 if text == self.right[PROMPTS[0], seed] else 1)
            except InputError as error:  # forked during another thread's step, or just closed
                answers.append(2 if "fork" in str(error) or "closed" in str(error) else 1)

        threads = [Thread(target=write, args=(i,), daemon=True) for i in range(CHILD_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if len(answers) < CHILD_THREADS:
            return 3
        return max(answers, key=lambda answer: answer % 2 * 2 + answer)

    def check_end(self) -> None:
        """Check that no sequence or block is left, and that the model works."""
        self._open_again()
        gc.collect()
        for key in self.right:
            if self.write(*key) != self.right[key]:
                self.faults.append(f"{key} differs at the end")
        engine = self.llm.engine
        if not engine.is_idle or engine.blocks.free != engine.blocks.count:
            self.faults.append("a sequence or a KV block is left")
        self.llm.close()


def main(argv: list[str] | None = None) -> int:
    """Run the soak, and print the results."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", default="toy-writer")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    host = Host(args)
    host.run()
    host.check_end()
    memory = [size >> 20 for size in host.memory]
    if args.json:
        print(json.dumps({**host.counts, "faults": host.faults, "memory_mb": memory}))
    else:
        print(", ".join(f"{count} {name}" for name, count in sorted(host.counts.items())))
        print(f"memory: {memory} MB; faults: {host.faults[:10] or 'none'}")
    return 1 if host.faults else 0


if __name__ == "__main__":
    sys.exit(main())
