"""The keywords of a request with their types, for type checkers and editors; nothing runs them.

What they mean: ``SamplingParams``, ``StopParams``, ``ConstraintParams``, ``RunParams`` and
``Options`` say.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

from cutaway.engine.canvas import Rule
from cutaway.engine.interventions import Intervention
from cutaway.sampling import Processor
from cutaway.text.grammar import OwnCheck


class SamplingOptions(TypedDict, total=False):
    """The keywords of ``SamplingParams``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_breakers: Sequence[int | str]
    logit_bias: Mapping[int, float]
    seed: int | None
    preset: str
    chain: Sequence[str] | None
    processors: Sequence[Processor]


class GrammarOptions(TypedDict, total=False):
    """The keywords that hold a text to a grammar."""

    json_schema: Any
    json_compact: bool
    thought: str
    calls: str
    regex: str | None
    grammar: str | PathLike[str] | None
    choice: Sequence[str]


class RequestOptions(SamplingOptions, GrammarOptions, total=False):
    """The keywords of a request."""

    max_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str]
    min_tokens: int
    check: str | OwnCheck | None
    heal: bool | int
    kv_cache: bool
    cache_prompt: bool
    priority: int
    speculate: str
    forced: Sequence[int]
    replay: Sequence[int]
    ledger: bool
    logprobs: int
    prompt_logprobs: int
    candidates: int
    track: Sequence[int]
    n: int
    align: bool
    special: bool
    suffix: str | None
    trace: str | PathLike[str] | None
    interventions: Sequence[Intervention | str]
    denoise: Rule | str | bool | Mapping[str, Any] | None
    adapter: str | None
