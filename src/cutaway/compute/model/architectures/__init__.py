"""One short function per architecture, each of which builds a graph. Nothing else."""

from collections.abc import Callable, Mapping

from cutaway.compute.model.architectures.bert import bert, modern_bert
from cutaway.compute.model.architectures.gemma import gemma2, gemma3
from cutaway.compute.model.architectures.gpt import gpt2, gptneox
from cutaway.compute.model.architectures.llama import llama, qwen3, smollm3
from cutaway.compute.model.architectures.olmo import olmo2
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor

ARCHITECTURES: Mapping[str, Callable[[Graph, ModelConfig], Tensor]] = {
    "llama": llama,  # llama, smollm 1 and 2, mistral, mixtral and many descendants
    "smollm3": smollm3,
    "qwen2": llama,  # and 2.5: it has biases
    "qwen3": qwen3,
    "qwen3moe": qwen3,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": llama,  # and 4: its matrices are fused
    "gpt2": gpt2,
    "gptneox": gptneox,  # and pythia
    "olmo2": olmo2,
    "granite": llama,  # it has scales
    "llada": llama,  # and 1.5: diffusion models: attention is bidirectional
    "llada-moe": qwen3,
    "dream": llama,  # and diffucoder
    "rnd1": qwen3,
    "bert": bert,  # and roberta, distilbert
    "modern-bert": modern_bert,
}
"""By GGUF's ``general.architecture``."""
