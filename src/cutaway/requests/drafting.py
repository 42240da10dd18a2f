"""Loads what drafts for a model: another model, the model's own head, or a head from a folder.

Knows which of these a name stands for. The draft computes on the threads of the model.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cutaway.compute import backends, model
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import model_name, open_model
from cutaway.compute.loading.parts import Parts
from cutaway.compute.model.assistants import build_assistant
from cutaway.compute.model.block_drafters import build_block_drafter
from cutaway.compute.model.draft_heads import build_eagle
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.engine import (
    AssistantHead,
    BlockForm,
    BlockHead,
    DraftHead,
    DraftModel,
    DraftVocabulary,
    EagleHead,
    EagleTensors,
    Engine,
)
from cutaway.errors import FormatError, InputError
from cutaway.files import hub
from cutaway.files.weights import ModelFile
from cutaway.files.weights.prefixed import PrefixedFile

BLOCK_DRAFTERS = ("dflash", "dspark")
"""The kinds of block drafters, and GGUF's names of their architectures."""


def load_draft(name: str, target: LoadedModel, engine: Engine, *, progress: bool) -> None:
    """Load a draft model (draft:MODEL), the model's own head (mtp) or another one (eagle:PATH, …).

    InputError while texts run, if the vocabularies
    differ, if the model has no head, or if memory is full.
    """
    kind, _, _ = name.partition(":")
    if not engine.is_idle:
        raise InputError("speculate", ": another draft model cannot be loaded while texts run")
    try:
        if name == DraftHead.kind:
            engine.speculator.draft = _draft_head(target)
        elif kind == EagleHead.kind:
            engine.speculator.draft = _eagle_head(name, target)
        elif kind == AssistantHead.kind:
            engine.speculator.draft = _assistant(name, target)
        elif kind in BLOCK_DRAFTERS:
            engine.speculator.draft = _block_head(name, target)
        else:
            engine.speculator.draft = _draft_model(name, target, progress=progress)
    except MemoryError as error:
        raise InputError(
            "speculate", f": {name} does not fit into memory beside the model: lower context"
        ) from error


def _draft_head(target: LoadedModel) -> DraftHead:
    with target.open_file() as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        try:
            graph = model.build_draft_head(file.metadata, shapes, target.context)
        except FormatError as error:
            raise InputError(
                "speculate", f": {target.name}: {error}; speculate ngram, jacobi or draft:MODEL"
            ) from error
        backend = target.backend.with_graph(graph, file)
        read = {op.weights["weight"] for op in graph.ops if isinstance(op, Linear)}
        read |= {
            name for op in graph.ops if isinstance(op, Experts) for name in op.weights.values()
        }
        share = sum(file.tensors[name].nbytes for name in read) / target.parts.nbytes
    return DraftHead(backend, share)


def _folder(name: str, head: str) -> Path:
    path = Path(name.partition(":")[2]).expanduser()
    if not path.is_dir():
        raise InputError("speculate", f": {path} is no folder; name that of {head}")
    return path


@contextmanager
def _reading(
    path: Path, open_file: Callable[[Path], ModelFile], target: LoadedModel
) -> Iterator[tuple[ModelFile, Mapping[str, tuple[int, ...]], float]]:
    """Open a head's file: give it, its tensors' shapes, and its bytes by those of the model.

    InputError names the file where it is no such head, or does not fit the model.
    """
    try:
        with open_file(path) as file:
            shapes = {name: info.shape for name, info in file.tensors.items()}
            size = sum(info.nbytes for info in file.tensors.values())
            yield file, shapes, size / target.parts.nbytes
    except FormatError as error:
        raise InputError("speculate", f": {path.name}: {error}") from error


def _eagle_head(name: str, target: LoadedModel) -> EagleHead:
    from cutaway.files.huggingface.eagle import EagleFolder

    path = _folder(name, "an EAGLE-3 head")
    with _reading(path, EagleFolder, target) as (file, shapes, share):
        head = build_eagle(file.metadata, shapes, target.graph)
        backend = target.backend.with_graph(head.graph, file)
    vocabulary = DraftVocabulary(head.target_ids, target.graph.ops[-1].out.width)
    tensors = EagleTensors(head.streams, (head.output, head.hidden), vocabulary)
    return EagleHead(backend, share, name, tensors)


def _assistant(name: str, target: LoadedModel) -> AssistantHead:
    from cutaway.files.huggingface.assistant import AssistantFolder

    path = _folder(name, "an assistant")
    with _reading(path, AssistantFolder, target) as (file, shapes, share):
        assistant = build_assistant(file.metadata, shapes, target.graph)
        backend = target.backend.with_adapter(assistant.graph, file)
    return AssistantHead(backend, share, name, assistant.output)


def _open_block_drafter(path: Path) -> ModelFile:
    """Open a drafter's folder, or its GGUF file as llama.cpp converts it."""
    if path.suffix != ".gguf":
        from cutaway.files.huggingface.dflash import BlockDrafterFolder

        return BlockDrafterFolder(path)
    file = open_model(path)
    kind = file.metadata.get("general.architecture")
    if kind not in BLOCK_DRAFTERS:
        raise FormatError(f"its architecture is {kind}, which is no block drafter's")
    metadata = {f"dflash.{k.removeprefix(f'{kind}.')}": v for k, v in file.metadata.items()}
    metadata["dflash.mask_token_id"] = file.metadata.get("tokenizer.ggml.mask_token_id")
    copies = ("token_embd.weight", "output.weight", "conf_proj.weight", "conf_proj.bias")
    return PrefixedFile(file, "dflash.", metadata, unread=copies)


def _block_head(name: str, target: LoadedModel) -> BlockHead:
    path = Path(name.partition(":")[2]).expanduser()
    if not path.is_file():
        path = _folder(name, "a block drafter, or its GGUF file")
    with _reading(path, _open_block_drafter, target) as (file, shapes, share):
        drafter = build_block_drafter(file.metadata, shapes, target.graph)
        backend = target.backend.with_graph(drafter.block, file)
        context = backend.with_adapter(drafter.context, file)
        markov = backend.with_adapter(drafter.markov, file) if drafter.markov else None
    vocabulary = DraftVocabulary(drafter.target_ids, target.graph.ops[-1].out.width)
    form = BlockForm(
        drafter.streams, drafter.block_size, drafter.mask_id, drafter.first, vocabulary
    )
    return BlockHead(name, form, share, backend=backend, context=context, markov=markov)


def _draft_model(name: str, target: LoadedModel, *, progress: bool) -> DraftModel:
    path = hub.resolve(name.partition(":")[2], progress=progress)
    with open_model(path) as file:
        parts = Parts.read(file, target.context)
        if not parts.tokenizer.has_tokens_of(target.tokenizer):
            raise InputError(
                "speculate",
                f": {model_name(path)} has other tokens than the model it is to draft "
                "for; a draft model must have the same",
            )
        if parts.graph.states:
            raise InputError(
                "speculate",
                f": layers of {model_name(path)} have a recurrent state, which a draft "
                "model cannot have; name another, or speculate ngram",
            )
        context = min(parts.config.context_length, target.context)
        backend = backends.load(
            target.backend.name, parts.graph, file, kv_blocks=target.backend.kv_blocks,
            context=context, beside=target.backend,
        )  # fmt: skip
    return DraftModel(backend, context, parts.nbytes / target.parts.nbytes, name)
