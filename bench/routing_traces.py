"""Conversations of a chat service's shape: lengths, system prompts, and times.

Knows a text only as the keys of its blocks, and knows nothing of replicas.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cutaway.compute.backends import KV_BLOCK


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The distribution of a chat service's texts; lengths are in tokens, and lognormal.

    systems     number of system prompts; the n-th is used 1 / n as often as the first
    turns       of a conversation, on average (geometric)
    think_s     seconds from an answer to the next question
    burst       conversations per replica that begin within one second with the same question
    burst_s     seconds from one burst to the next
    """

    systems: int = 50
    system_tokens: float = 400.0
    question_tokens: float = 40.0
    answer_tokens: float = 120.0
    turns: float = 4.0
    think_s: float = 20.0
    burst: float = 2.0
    burst_s: float = 60.0
    longest: int = 8192


class Turn(NamedTuple):
    """A question and its answer. think_s: seconds before the question is asked."""

    question: int
    answer: int
    think_s: float


@dataclass(frozen=True)
class Conversation:
    """A conversation. parts: (owner, tokens) of the beginning, which others may share."""

    number: int
    start_s: float
    parts: tuple[tuple[int, int], ...]
    turns: tuple[Turn, ...]

    def keys(self, tokens: int) -> tuple[int, ...]:
        """The keys of the whole blocks of the text's first tokens."""
        found: list[int] = []
        end = 0
        for owner, length in (*self.parts, (self.number, tokens)):
            end = min(end + length, tokens)
            found += [owner << 16 | place for place in range(len(found), end // KV_BLOCK)]
        return tuple(found)

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """The numbers of tokens of each turn's prompt, and of its answer."""
        told, found = self.parts[0][1], []
        for turn in self.turns:
            found.append((told + turn.question, turn.answer))
            told += turn.question + turn.answer
        return found


def rows_of(shape: Shape) -> tuple[float, float]:
    """Mean rows that a turn reads if no token is read twice, and mean tokens that it writes."""
    mean = np.exp(0.5 * _SIGMA**2)
    return shape.question_tokens * mean + KV_BLOCK / 2, shape.answer_tokens * mean


_SIGMA = 0.8
_SYSTEM, _BURST = 1 << 40, 1 << 41  # numbers of owners that are not conversations


def conversations(
    shape: Shape, rate: float, seconds: float, replicas: int, seed: int
) -> list[Conversation]:
    """Draw all conversations of some seconds, in order: ``rate`` a second, and the bursts."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, shape.systems + 1)
    lengths = _lengths(rng, shape.system_tokens, shape.systems, 0.5)
    count = int(rng.poisson(rate * seconds))
    starts: list[tuple[float, int | None]] = [
        (float(s), None) for s in rng.uniform(0, seconds, count)
    ]
    each = round(shape.burst * replicas)
    for nth in range(1, int(seconds / shape.burst_s) + 1 if shape.burst_s else 1):
        at = nth * shape.burst_s
        starts += [(at + float(s), nth) for s in rng.uniform(0, 1, each)]
    found = []
    for number, (start, burst) in enumerate(sorted(starts, key=lambda one: one[0])):
        system = int(rng.choice(shape.systems, p=weights / weights.sum()))
        turns = _turns(shape, rng)
        if burst is not None:  # all conversations of a burst ask the same long question
            system = burst % shape.systems
            question = int(np.random.default_rng((seed, burst)).integers(200, 1200))
            turns = (turns[0]._replace(question=question), *turns[1:])
        parts = [(_SYSTEM + system, lengths[system])]
        if burst is not None:
            parts.append((_BURST + burst, turns[0].question))
        found.append(Conversation(number, start, tuple(parts), _fitting(shape, parts, turns)))
    return found


def _turns(shape: Shape, rng: np.random.Generator) -> tuple[Turn, ...]:
    count = int(rng.geometric(1 / shape.turns))
    questions = _lengths(rng, shape.question_tokens, count, _SIGMA)
    answers = _lengths(rng, shape.answer_tokens, count, _SIGMA)
    thinks = shape.think_s * np.exp(rng.normal(0, 1, count))
    return tuple(map(Turn, questions, answers, thinks.tolist()))


def _fitting(
    shape: Shape, parts: list[tuple[int, int]], turns: tuple[Turn, ...]
) -> tuple[Turn, ...]:
    """As many turns as the context has room for."""
    told, fitting = parts[0][1], 0
    for turn in turns:
        told += turn.question + turn.answer
        if told > shape.longest:
            break
        fitting += 1
    return turns[: max(fitting, 1)]


def _lengths(rng: np.random.Generator, middle: float, count: int, sigma: float) -> list[int]:
    drawn = middle * np.exp(rng.normal(0, sigma, count))
    return [int(n) for n in np.clip(np.rint(drawn), 4, 4000)]
