"""Loads what drafts for a model: another model, or a head of its own."""

from pathlib import Path

from cutaway.compute import backends, model
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import model_name, open_model
from cutaway.compute.loading.parts import Parts
from cutaway.engine import DraftHead, DraftModel, EagleHead, EagleTensors, Engine
from cutaway.errors import FormatError, InputError
from cutaway.files import hub


def load_draft(name: str, target: LoadedModel, engine: Engine, *, progress: bool) -> None:
    """Load a draft model, draft:MODEL, the model's own draft head, mtp, or one apart, eagle:PATH.

    It computes on the threads of ``target``. InputError while texts run, where the vocabularies
    differ, the model has no head, or memory is full.
    """
    if not engine.is_idle:
        raise InputError("speculate: another draft model cannot be loaded while texts run")
    try:
        if name == DraftHead.kind:
            engine.speculator.draft = _draft_head(target)
        elif name.startswith(f"{EagleHead.kind}:"):
            engine.speculator.draft = _eagle_head(name, target)
        else:
            engine.speculator.draft = _draft_model(name, target, progress=progress)
    except MemoryError as error:
        raise InputError(
            f"speculate: {name} does not fit into memory beside the model: lower context"
        ) from error


def _draft_head(target: LoadedModel) -> DraftHead:
    with target.opened() as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        try:
            graph = model.build_draft_head(file.metadata, shapes, target.context)
        except FormatError as error:
            raise InputError(
                f"speculate: {target.name}: {error}; speculate ngram, jacobi or draft:MODEL"
            ) from error
        backend = target.backend.beside(graph, file)
        read = {op.weights["weight"] for op in graph.ops if op.kind == "linear"}
        read |= {name for op in graph.ops if op.kind == "experts" for name in op.weights.values()}
        share = sum(file.tensors[name].nbytes for name in read) / target.parts.nbytes
    return DraftHead(backend, share)


def _eagle_head(name: str, target: LoadedModel) -> EagleHead:
    from cutaway.files.huggingface.eagle import EagleFolder

    path = Path(name.partition(":")[2]).expanduser()
    if not path.is_dir():
        raise InputError(f"speculate: {path} is no folder; name that of an EAGLE-3 head")
    try:
        with EagleFolder(path) as file:
            shapes = {at: info.shape for at, info in file.tensors.items()}
            made = model.build_eagle(file.metadata, shapes, target.graph)
            backend = target.backend.beside(made.graph, file)
            share = sum(info.nbytes for info in file.tensors.values()) / target.parts.nbytes
    except FormatError as error:
        raise InputError(f"speculate: {path.name}: {error}") from error
    own, tokens = (made.own, made.hidden), target.graph.ops[-1].out.width
    of = EagleTensors(made.streams, own, made.target_ids, tokens)
    return EagleHead(backend, share, name, of)


def _draft_model(name: str, target: LoadedModel, *, progress: bool) -> DraftModel:
    path = hub.resolve(name.partition(":")[2], progress=progress)
    with open_model(path) as file:
        parts = Parts.read(file, target.context)
        if not parts.tokenizer.has_tokens_of(target.tokenizer):
            raise InputError(
                f"speculate: {model_name(path)} has other tokens than the model it is to draft "
                "for; a draft model must have the same"
            )
        if parts.graph.has_state:
            raise InputError(
                f"speculate: layers of {model_name(path)} have a recurrent state, which a draft "
                "model cannot have; name another, or speculate ngram"
            )
        context = min(parts.config.context_length, target.context)
        backend = backends.load(
            target.backend.name, parts.graph, file, kv_blocks=target.backend.kv_blocks,
            context=context, beside=target.backend,
        )  # fmt: skip
    return DraftModel(backend, context, parts.nbytes / target.parts.nbytes, name)
