"""The architectures: one row each.

A new one touches three files: this one (its row), a module of this package (the short function
that builds its graph; ``parts.py`` has what they share), and for folders of transformers
``files/huggingface/families.py`` (what its tensors are called, and keys of its own). docs/models.md
lists it.
"""

from collections.abc import Mapping

from cutaway.compute.model.architectures.bert import bert, modern_bert
from cutaway.compute.model.architectures.gemma import gemma2, gemma3
from cutaway.compute.model.architectures.gpt import gpt2, gptneox
from cutaway.compute.model.architectures.llama import llama, qwen3, smollm3
from cutaway.compute.model.architectures.olmo import olmo2
from cutaway.compute.model.config import Architecture

_GELU = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}

ARCHITECTURES: Mapping[str, Architecture] = {
    # llama, smollm 1 and 2, mistral, mixtral and many descendants
    "llama": Architecture(llama, interleaved_rope=True),
    "smollm3": Architecture(smollm3, interleaved_rope=True),
    "qwen2": Architecture(llama),  # and 2.5: it has biases
    "qwen3": Architecture(qwen3),
    "qwen3moe": Architecture(qwen3),
    "gemma2": Architecture(
        gemma2, window=4096, full_every=2, attention_softcap=50.0, logit_softcap=30.0,
        scaled_by_width_at=46,
    ),
    "gemma3": Architecture(gemma3, full_every=6, scaled_by_width_at=62),
    "phi3": Architecture(llama),  # and 4: its matrices are fused
    "gpt2": Architecture(gpt2, layer_norm=True, learned_positions=True),
    # and pythia
    "gptneox": Architecture(gptneox, layer_norm=True, is_parallel=True, activations=_GELU),
    # Olmo 3 is one with a window, whose rope depends on the layer
    "olmo2": Architecture(olmo2, must_be={"attention.sliding_window": (0,)}),
    # it has scales; where rope's scaling is not "finetuned", nothing is rotated
    "granite": Architecture(
        llama, interleaved_rope=True, must_be={"rope.scaling.finetuned": (True,)}
    ),
    # and 1.5: diffusion models
    "llada": Architecture(llama, interleaved_rope=True, is_causal=False),
    "llada-moe": Architecture(qwen3, is_causal=False, norm_topk_prob=False),
    "dream": Architecture(llama, is_causal=False, shift=True),  # and diffucoder
    "rnd1": Architecture(qwen3, is_causal=False, shift=True),
    # and roberta, distilbert
    "bert": Architecture(
        bert, layer_norm=True, learned_positions=True, is_causal=False, activations=_GELU
    ),
    "modern-bert": Architecture(
        modern_bert, layer_norm=True, is_causal=False, full_every=3, full_first=True,
        activations=_GELU | {"silu": "silu"},
    ),
}  # fmt: skip
"""By GGUF's ``general.architecture``."""
