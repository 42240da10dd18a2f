"""From a row of logits to a token: settings, the chain of stages, luck, the draw.

Knows probabilities. Refuses to know where logits come from.
"""

from cutaway.sampling.chain import (
    Draw,
    History,
    Stage,
    StageReport,
    apply,
    build_chain,
    draw,
    logprob,
)
from cutaway.sampling.luck import derive_seed
from cutaway.sampling.native import Recipe, Request, Sampled, sample
from cutaway.sampling.params import Processor, SamplingParams, check_int
from cutaway.sampling.presets import PRESETS

__all__ = [
    "PRESETS",
    "Draw",
    "History",
    "Processor",
    "Recipe",
    "Request",
    "Sampled",
    "SamplingParams",
    "Stage",
    "StageReport",
    "apply",
    "build_chain",
    "check_int",
    "derive_seed",
    "draw",
    "logprob",
    "sample",
]
