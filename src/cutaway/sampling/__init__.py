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
from cutaway.sampling.logprobs import Logprobs, ReadRow
from cutaway.sampling.look import Candidate, Look, Observed
from cutaway.sampling.luck import derive_seed
from cutaway.sampling.native import Recipe, Request, Sampled, sample
from cutaway.sampling.params import Processor, SamplingParams
from cutaway.sampling.presets import PRESETS
from cutaway.sampling.reading import read_rows

__all__ = [
    "PRESETS",
    "Candidate",
    "Draw",
    "History",
    "Logprobs",
    "Look",
    "Observed",
    "Processor",
    "ReadRow",
    "Recipe",
    "Request",
    "Sampled",
    "SamplingParams",
    "Stage",
    "StageReport",
    "apply",
    "build_chain",
    "derive_seed",
    "draw",
    "logprob",
    "read_rows",
    "sample",
]
