"""Ling and Ring 1 and 2 of inclusionAI, and LLaDA 2, wired as Llama or Qwen 3 with experts.

``files/huggingface/families/ling.py`` reads their folders.
"""

from collections.abc import Mapping

from cutaway.compute.model.architectures.llama import llama, qwen3
from cutaway.compute.model.config import Architecture
from cutaway.compute.model.mixture import Mixture

ROWS: Mapping[str, Architecture] = {
    "bailingmoe": Architecture(llama, interleaved_rope=True, mixture=Mixture(used=1, normed=False)),
    "bailingmoe2": Architecture(qwen3, mixture=Mixture(used=1, gating="sigmoid", normed=False)),
}
