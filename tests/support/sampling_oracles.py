"""Brute-force definitions of the sampler's computations: plain loops over Python numbers.

Slow on purpose. Real numbers are Decimals of 50 digits; float32 steps are rounded one by one.
Within 1e-12 of a threshold float64 cannot decide, so `assume` skips the case.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from cutaway.sampling import PRESETS, History, SamplingParams, Stage, build_chain

Scores = dict[int, float]  # token id -> its float32 logit

REAL = Context(prec=50)
HAIR = Decimal("1e-12")

# Quarters, which tie, or any float32 in a model's usual range.
LOGITS = st.one_of(st.integers(-24, 24).map(lambda n: n / 4), st.floats(-30, 30, width=32))


def rows(min_size: int = 1, max_size: int = 12) -> st.SearchStrategy[np.ndarray]:
    return st.lists(LOGITS, min_size=min_size, max_size=max_size).map(row)


def row(values: Iterable[float]) -> np.ndarray:
    """Return a read-only row of logits, as a model gives it."""
    logits = np.array(list(values), np.float32)
    logits.setflags(write=False)
    return logits


def scores_of(logits: np.ndarray) -> Scores:
    return {i: float(logit) for i, logit in enumerate(logits)}


# --- settings -------------------------------------------------------------------------------

OFF: dict[str, Any] = {"temperature": 1, "top_p": 1}  # every stage neutral
NOBODY = History()
TOKENS = st.lists(st.integers(0, 14), max_size=12)  # some lie beyond the vocabulary
HISTORIES = st.builds(History, TOKENS, TOKENS)
PENALTY = st.one_of(st.just(0.0), st.floats(-2, 2))
SETTINGS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(1.0), st.floats(0.1, 5)),
        "top_k": st.integers(0, 14),
        "top_p": st.one_of(st.just(1.0), st.floats(1e-9, 1)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.001, 0.99)),
        "repetition_penalty": st.one_of(st.just(1.0), st.floats(0.5, 2)),
        "presence_penalty": PENALTY,
        "frequency_penalty": PENALTY,
        "logit_bias": st.dictionaries(st.integers(0, 14), st.floats(-100, 100), max_size=3),
        "preset": st.sampled_from(sorted(PRESETS)),
    }
)


def chain_of(**settings: Any) -> tuple[Stage, ...]:
    return build_chain(SamplingParams(**(OFF | settings)))


# --- luck -----------------------------------------------------------------------------------


def philox_words(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Return Philox4x32-10 (Salmon et al. 2011) of one counter, in Python integers."""
    (a, b, c, d), (k0, k1) = counter, key
    for n in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        round_key = (k0 + n * 0x9E3779B9) % 2**32, (k1 + n * 0xBB67AE85) % 2**32
        a, b = (right // 2**32) ^ b ^ round_key[0], right % 2**32
        c, d = (left // 2**32) ^ d ^ round_key[1], left % 2**32
    return [a, b, c, d]


def uniform_of(seed: int, position: int, token_id: int) -> Fraction:
    words = philox_words((token_id // 4, position, 0, 0), (seed % 2**32, seed // 2**32))
    return (words[token_id % 4] + Fraction(1, 2)) / 2**32


def gumbel_of(seed: int, position: int, token_id: int) -> Decimal:
    u = uniform_of(seed, position, token_id)
    return -ln(-ln(REAL.divide(Decimal(u.numerator), Decimal(u.denominator))))


def ln(x: Decimal | float) -> Decimal:
    return REAL.ln(Decimal(x))


def e_to(x: Decimal | float) -> Decimal:
    return REAL.exp(Decimal(x))


# --- stages ---------------------------------------------------------------------------------


def better(a: int, b: int, scores: Scores) -> bool:
    return scores[a] > scores[b] or (scores[a] == scores[b] and a < b)


def best_first(scores: Scores) -> list[int]:
    return sorted(scores, key=lambda t: sum(better(other, t, scores) for other in scores))


def probabilities(scores: Scores) -> dict[int, Decimal]:
    weights = {t: e_to(score) for t, score in scores.items()}
    total = sum(weights.values())
    return {t: REAL.divide(weight, total) for t, weight in weights.items()}


def log_sum_exp(scores: Scores) -> float:
    return float(ln(sum((e_to(score) for score in scores.values()), Decimal(0))))


def top_k(scores: Scores, k: int) -> set[int]:
    return {t for t in scores if sum(better(other, t, scores) for other in scores) < k}


def top_p(scores: Scores, p: float) -> set[int]:
    """Keep a token if the better ones have a total below p: the token that crosses p stays."""
    mass, survivors = probabilities(scores), set()
    for t in scores:
        ahead = sum((mass[other] for other in scores if better(other, t, scores)), Decimal(0))
        assume(abs(ahead - Decimal(p)) > HAIR)
        if ahead < Decimal(p):
            survivors.add(t)
    return survivors


def min_p(scores: Scores, p: float) -> set[int]:
    mass = probabilities(scores)
    ratios = {t: mass[t] / max(mass.values()) for t in scores}
    assume(all(abs(ratio - Decimal(p)) > HAIR * Decimal(p) for ratio in ratios.values()))
    return {t for t, ratio in ratios.items() if ratio >= Decimal(p)}


def float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def temperature(scores: Scores, value: float) -> Scores:
    return {t: float32(score / float32(value)) for t, score in scores.items()}


def logit_bias(scores: Scores, bias: dict[int, float]) -> Scores:
    return {t: float32(score + float32(bias.get(t, 0.0))) for t, score in scores.items()}


def penalties(scores: Scores, rule: dict[str, float], history: History) -> Scores:
    prompt, output = list(history.prompt_token_ids), list(history.output_token_ids)
    after: Scores = {}
    for t, score in scores.items():
        value = score
        if t in prompt or t in output:
            factor = float32(rule["repetition"])
            value = float32(value / factor) if value > 0 else float32(value * factor)
        if t in output:
            value = float32(value - float32(rule["presence"]))
            value = float32(value - float32(float32(rule["frequency"]) * output.count(t)))
        after[t] = value
    return after


def stage_scores(stage: Stage, scores: Scores, history: History) -> Scores:
    """Return the survivors of one stage, with their logits."""
    rule: Any = stage.rule
    filters = {
        "top_k": lambda: top_k(scores, rule["k"]),
        "top_p": lambda: top_p(scores, rule["p"]),
        "min_p": lambda: min_p(scores, rule["p"]),
    }
    if stage.name in filters:
        survivors = filters[stage.name]()
        return {t: score for t, score in scores.items() if t in survivors}
    if stage.name == "temperature":
        return temperature(scores, rule["temperature"])
    if stage.name == "logit_bias":
        return logit_bias(scores, rule["bias"])
    if stage.name == "penalties":
        return penalties(scores, rule, history)
    raise AssertionError(f"no definition of {stage.name}")


def snapshots(chain: Sequence[Stage], logits: np.ndarray, history: History) -> list[Scores]:
    """Return the survivors before the first stage, and after each."""
    states = [scores_of(logits)]
    for stage in chain:
        states.append(stage_scores(stage, states[-1], history))
    return states


def winner(scores: Scores, seed: int, position: int) -> int:
    """Return the argmax of logit + luck over the survivors, in real numbers."""
    totals = {t: Decimal(score) + gumbel_of(seed, position, t) for t, score in scores.items()}
    ranked = sorted(totals, key=lambda t: totals[t], reverse=True)
    assume(len(ranked) == 1 or totals[ranked[0]] - totals[ranked[1]] > HAIR)
    return ranked[0]


def removed_mass(before: Scores, after: Scores) -> float:
    top = max(before.values())
    total = math.fsum(math.exp(score - top) for score in before.values())
    removed_mass = math.fsum(math.exp(score - top) for t, score in before.items() if t not in after)
    return removed_mass / total
