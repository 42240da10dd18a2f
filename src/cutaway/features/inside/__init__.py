"""The inside of a step of a trace: attention, logit attribution and the lens, recomputed; and the
attention in whole texts."""

from cutaway.features.inside.ablate import Ablation, ablate
from cutaway.features.inside.embedding import Nearest, nearest
from cutaway.features.inside.ending import EndAttribution, end_attribution
from cutaway.features.inside.lens import Lens
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look, OtherRowError, inside
from cutaway.features.inside.texts import TextAttention, text_attention
from cutaway.features.inside.unrecorded import unrecorded_trace

without, end_pushes, written = ablate, end_attribution, unrecorded_trace  # their earlier names

__all__ = [
    "Ablation", "EndAttribution", "Lens", "LogitAttribution", "Look", "Nearest", "OtherRowError",
    "TextAttention", "ablate", "end_attribution", "inside", "nearest", "text_attention",
    "unrecorded_trace", "without", "written",
]  # fmt: skip
