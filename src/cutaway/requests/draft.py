"""Loads a small model that drafts tokens for another."""

from pathlib import Path

from cutaway.compute import backends
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import model_name, open_model
from cutaway.compute.loading.parts import Parts
from cutaway.engine import DraftModel
from cutaway.errors import InputError


def draft_model(name: str, path: Path, target: LoadedModel) -> DraftModel:
    """A draft model for ``target`` from a file; it computes on the target's threads.

    InputError where the vocabularies differ or memory is full.
    """
    with open_model(path) as file:
        parts = Parts.read(file, target.context)
        if not parts.tokenizer.has_tokens_of(target.tokenizer):
            raise InputError(
                f"speculate: {model_name(path)} has other tokens than the model it is to draft "
                "for; a draft model must have the same"
            )
        context = min(parts.config.context_length, target.context)
        try:
            backend = backends.load(
                target.backend.name, parts.graph, file, kv_blocks=target.backend.kv_blocks,
                context=context, beside=target.backend,
            )  # fmt: skip
        except MemoryError as error:
            raise InputError(
                f"speculate: {path.name} does not fit into memory beside the model: lower context"
            ) from error
    return DraftModel(backend, context, parts.nbytes / target.parts.nbytes, name)
