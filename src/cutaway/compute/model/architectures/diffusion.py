"""Masked diffusion models, which are wired as decoders, but each token sees the whole text.

``files/huggingface/families/diffusion.py`` reads their folders.
"""

from collections.abc import Mapping

from cutaway.compute.model.architectures.llama import llama, qwen3
from cutaway.compute.model.architectures.parts import SEES_ALL
from cutaway.compute.model.config import Architecture
from cutaway.compute.model.mixture import Mixture

_SHIFTED = SEES_ALL | {"shift_logits": True}

ROWS: Mapping[str, Architecture] = {
    "llada": Architecture(llama, interleaved_rope=True, defaults=SEES_ALL),  # and 1.5
    "llada-moe": Architecture(qwen3, defaults=SEES_ALL, mixture=Mixture(used=1, normed=False)),
    "dream": Architecture(llama, defaults=_SHIFTED),  # and diffucoder
    "rnd1": Architecture(qwen3, defaults=_SHIFTED),
}
