"""Sampling, from a row of logits to a token: settings, the chain of stages, luck, the draw."""

from cutaway.sampling.chain import Stage, StageReport, apply, build_chain, logprob
from cutaway.sampling.definitions import History, LogitsRow
from cutaway.sampling.luck import coin, derive_seed, gumbel, text_luck, trial_seed
from cutaway.sampling.native import (
    CompiledChain,
    Distributions,
    RowDraw,
    Sampled,
    read_distributions,
    read_rows,
    sample,
)
from cutaway.sampling.observe import Candidate, Likeliest, Logprobs, Observation, Observe, ReadRow
from cutaway.sampling.params import PARAMS, Param, Processor, SamplingParams
from cutaway.sampling.stages import PRESETS, STAGES, StageSpec
