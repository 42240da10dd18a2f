"""The inside of a step of a trace: attention, logit attribution and the lens, recomputed; and the
attention in whole texts."""

from cutaway.features.inside.ablate import Ablation, ablate
from cutaway.features.inside.lens import Lens, Nearest, nearest
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import (
    EndAttribution,
    Look,
    OtherRowError,
    end_attribution,
    inside,
)
from cutaway.features.inside.steps import unrecorded_trace
from cutaway.features.inside.texts import TextAttention, text_attention

without, end_pushes, written = ablate, end_attribution, unrecorded_trace  # their earlier names

__all__ = [
    "Ablation", "EndAttribution", "Lens", "LogitAttribution", "Look", "Nearest", "OtherRowError",
    "TextAttention", "ablate", "end_attribution", "inside", "nearest", "text_attention",
    "unrecorded_trace", "without", "written",
]  # fmt: skip
