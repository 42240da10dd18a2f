"""Traces made by hand, with figures computed from whole rows of logits."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutaway.engine import Phases, Step
from cutaway.sampling import Candidate, Observation, Stage, StageReport
from cutaway.trace import End, Head, Token, Trace
from cutaway.trace.steps import step_to_json

END, VOCAB = 0, 6
NAMES = {1: " mat", 2: " sofa", 3: " roof", 4: " moon", 5: " idea"}
ROW = (-0.5, 2.0, 1.5, 1.0, 0.0, -1.0)
"""The lesson's row: the end token, mat, sofa, roof, moon, idea."""
PROMPT = (1, 2)
TOP_K = {"stage": "top_k", "k": 2}


def probabilities(row: Sequence[float]) -> np.ndarray:
    """Return the softmax of a row by definition: float64 (VOCAB,)."""
    wide = np.exp(np.asarray(row, np.float64))
    shares: np.ndarray = wide / wide.sum()
    return shares


def made_step(
    index: int, token_id: int, row: Sequence[float] = ROW, *, k: int = 2, source: str = "sampled",
    sampled_id: int | None = None, luck: Mapping[int, float] | None = None, bits: str = "00",
    delta: float = 0.0,
) -> Step:  # fmt: skip
    """Return a step through top-k alone. bits: digits of its hash; delta: recorded, not applied."""
    share, luck = probabilities(row), luck or {}
    order = sorted(range(VOCAB), key=lambda i: (-row[i], i))
    alive, lse = order[:k], float(np.log(np.exp(np.asarray(row, np.float64)).sum()))
    log_mass = float(np.log(sum(np.exp(row[i]) for i in alive)))
    candidates = tuple(
        Candidate(
            id=i, logit=row[i], rank=order.index(i) + 1, delta=delta,
            luck=None if source == "greedy" else luck.get(i, 0.0),
            removed_by=None if i in alive else 0,
            final_logprob=row[i] - log_mass if i in alive else None,
        )
        for i in order
    )  # fmt: skip
    candidate = next(c for c in candidates if c.id == token_id)
    observed = Observation(
        candidates=candidates, maximum=max(row), log_sum_exp=lse,
        entropy=float(-(share * np.log(share)).sum()), rank=candidate.rank,
        logprob=candidate.logit - lse, final_rank=candidate.rank if token_id in alive else None,
        final_logprob=candidate.final_logprob, final_log_sum_exp=log_mass,
        stages=(StageReport(Stage("top_k", {"k": k}), k, float(share[order[k:]].sum()),
                            tuple(order[k:]), log_mass, row[order[k - 1]]),),
        logit_histogram=(VOCAB,), after_chain=(),
    )  # fmt: skip
    return Step(
        id=0, index=index, position=len(PROMPT) + index, token_id=token_id,
        sampled_id=token_id if sampled_id is None else sampled_id, source=source,
        text=NAMES.get(token_id, ""),
        released_bytes=0, logprob=observed.logprob, survivors=k, observed=observed,
        phases=Phases(schedule=1e-4, run=5e-3, sample=4e-4), logits_hash=int(bits * 8, 16),
        fingerprint=int(bits * 8, 16),
    )  # fmt: skip


def made_bytes(
    steps: Sequence[Step], reason: str | None = "max_tokens", *, matched: str | int | None = None,
    names: Mapping[int, str | bytes] = NAMES, **head: Any,
) -> bytes:  # fmt: skip
    """Return the bytes of the trace file. names: token id -> text or bytes."""
    fields: dict[str, Any] = {
        "cutaway": "0", "model": "made", "weights": "0" * 64, "tokenizer": "1" * 64,
        "backend": "cpu", "tier": "generic", "threads": 1, "vocab_size": VOCAB, "prompt": None,
        "prompt_token_ids": PROMPT, "chain": (TOP_K,), "params": {"top_k": 2}, "seed": 7,
        "candidates": 3, "tracked_ids": (END,), "end_ids": (END,), "kv_bytes_per_token": 1000,
    }  # fmt: skip
    bytes_by_id = {
        i: v if isinstance(v, bytes) else v.encode() for i, v in (NAMES | dict(names)).items()
    }
    tokens = [Token(END, b"", "<end>"), *(Token(i, data) for i, data in bytes_by_id.items())]
    records = [Head(**fields | head).to_json(), *(token.to_json() for token in tokens)]
    records += map(step_to_json, steps)
    if reason:
        usage = {"prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": len(steps)}
        records.append(End(reason, matched, usage, "0" * 16).to_json())
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def made_trace(steps: Sequence[Step], reason: str | None = "max_tokens", **more: Any) -> Trace:
    """Return a trace read from its bytes, so that all of it is checked."""
    return Trace.parse(made_bytes(steps, reason, **more))


def made_text(*token_ids: int, bits: str = "00", **more: Any) -> Trace:
    """Return a trace of these tokens."""
    steps = [made_step(i, token_id, bits=bits) for i, token_id in enumerate(token_ids)]
    return made_trace(steps, **more)
