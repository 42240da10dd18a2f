"""One short function per architecture, each of which builds a graph. Nothing else."""

from collections.abc import Callable, Mapping

from cutaway.model.architectures.llama import llama
from cutaway.model.config import ModelConfig
from cutaway.model.graph import Graph, Tensor

ARCHITECTURES: Mapping[str, Callable[[Graph, ModelConfig], Tensor]] = {"llama": llama}
