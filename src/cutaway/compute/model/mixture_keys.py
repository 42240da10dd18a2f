"""A model's mixture, read from its file's metadata. Knows GGUF's keys, and no architecture."""

from dataclasses import replace

from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.errors import FormatError

_GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax"}
_OF_CHOSEN = 3  # a softmax after the choice, which is that of all, normed


def mixture_of(read: MetadataReader, usual: Mixture, experts: int) -> Mixture:
    """FormatError for a gating that is not supported.

    usual: what the architecture has where its files do not say
    experts: of a layer
    """
    gating = read.size_or_zero("expert_gating_func")
    if gating not in (0, *_GATINGS):
        raise FormatError(
            f"metadata key {read.prefix}.expert_gating_func is {gating}, which is not supported; "
            f"only {', '.join(map(str, _GATINGS))} are"
        )
    groups = read.size_or_zero("expert_group_count") or usual.groups
    used_groups = read.size_or_zero("expert_group_used_count") or groups
    used = read.size("expert_used_count", most=experts)
    if groups in (1, used_groups):
        groups = used_groups = 1
    kind = _GATINGS.get(gating, usual.gating)
    return replace(
        usual,
        used=used,
        gating=kind,
        best_of_group=usual.best_of_group if kind == usual.gating else 2,
        normed=gating == _OF_CHOSEN or read.flag("expert_weights_norm", usual.normed),
        scale=read.or_zero("expert_weights_scale") or usual.scale,
        groups=groups,
        used_groups=used_groups,
    )
