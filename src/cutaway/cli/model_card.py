"""``cutaway models show``: one model's card, from the metadata of its file."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from cutaway.base.checks import check_int, shown
from cutaway.base.progress import megabytes
from cutaway.base.resources import free_memory
from cutaway.cli.terminal.drawing import print_lines
from cutaway.cli.terminal.streams import print_json
from cutaway.compute.loading.info import ModelInfo, Special
from cutaway.compute.model import ModelConfig
from cutaway.compute.model.architectures.deepseek import DeepSeek
from cutaway.compute.model.architectures.gemma import Gemma4
from cutaway.files import hub


def run(args: Namespace) -> int:
    """Print the card to standard output."""
    card = ModelInfo.read(hub.resolve(args.name), args.quantize, args.kv or "f16")
    longest = card.config.context_length
    context = longest if args.context is None else check_int("--context", args.context, 1, longest)
    if args.json:
        print_json(_document(card, context))
    else:
        print_lines(f"{name:<14}{text}".rstrip() for name, text in _rows(card, context))
    return 0


_UNREAD = {
    "pictures": "reads pictures", "sound": "hears sound",
    "tokens ahead": "guesses tokens ahead (MTP)",
}  # fmt: skip


def _document(card: ModelInfo, context: int) -> dict[str, object]:
    fields: dict[str, object] = asdict(card)
    fields |= {"path": str(card.path), "kv": [g._asdict() for g in card.kv.groups]}
    if card.kv.state:
        fields["state"] = card.kv.state._asdict()
    return fields | {"memory": {"context": context, "bytes": card.memory(context)}}


def _rows(card: ModelInfo, context: int) -> Iterator[tuple[str, str]]:
    c = card.config
    yield "name", card.name
    yield "file", f"{card.path} ({megabytes(card.file_bytes)})"
    yield "architecture", f"{c.architecture}, {card.parameters / 1e6:,.0f} million parameters"
    yield "layers", f"{c.layers} of width {c.hidden:,}"
    depth = 1 + max((layer for group in card.kv.groups for layer in group.layers), default=0)
    if depth > c.layers:
        yield "", f"run several times, {depth} layers deep"
        if not c.experts:
            yield from _reads(card)
    yield "attention", _heads(c)
    if c.attention != "causal":
        yield "", _attention(c)
    if c.heads:
        yield "positions", _positions(c)
    if any(c.windows):
        seeing = sum(window > 0 for window in c.windows)
        one_side = c.attention != "bidirectional"
        span = "the last {:,} tokens" if one_side else "{:,} tokens to each side"
        yield "windows", f"{seeing} of {c.layers} layers see {span.format(max(c.windows))}"
    if any(c.recurrent):
        yield "states", f"{sum(c.recurrent)} of {c.layers} layers have a recurrent one"
    if card.unread:
        yield "not run", " and ".join(f"what {_UNREAD[part]}" for part in card.unread)
    if c.experts:
        yield "experts", f"{c.experts} in each layer, {c.experts_used} of them for a token"
        yield "", f"{card.active_parameters / 1e6:,.0f} million parameters for a token"
        yield from _reads(card)
    yield "context", f"{c.context_length:,} tokens"
    yield "vocabulary", f"{card.vocab_size:,} tokens"
    yield from _weights(card)
    yield from _memory(card, context)
    yield from _text(card)


def _reads(card: ModelInfo) -> Iterator[tuple[str, str]]:
    yield "", f"{megabytes(card.active_bytes)} of weights read for a token"


def _weights(card: ModelInfo) -> Iterator[tuple[str, str]]:
    longest = max(5, *map(len, card.formats))
    for i, (name, stored) in enumerate(card.formats.items()):
        tensors = f"{stored.tensors} tensor{'s' * (stored.tensors != 1)}"
        yield "" if i else "weights", f"{name:<{longest}} {tensors}, {megabytes(stored.bytes)}"


def _memory(card: ModelInfo, context: int) -> Iterator[tuple[str, str]]:
    yield "memory", f"{megabytes(card.memory(context))} for {context:,} tokens of text"
    yield "", f"{megabytes(card.weight_bytes)} of weights"
    if card.canvas_bytes:
        yield "", f"{megabytes(card.canvas_bytes)} of them are the embedding's transpose"
    if card.left_bytes:
        yield "", f"{megabytes(card.left_bytes)} more are embeddings that stay in the file"
    states = card.kv.state_bytes(context)
    keys_values = card.kv.bytes_stored(context) - states
    yield "", f"{megabytes(keys_values)} of keys and values, {_each_token(card)}"
    if card.kv.state:
        size, count = megabytes(card.kv.state.nbytes), card.kv.kept_states(context)
        yield (
            "",
            f"{megabytes(states)} of recurrent states, {size} each, {count} kept for later texts",
        )
    memory = free_memory()
    if memory is not None and card.weight_bytes > memory.free:
        yield "", f"{megabytes(memory.free)} of {memory.owner} are free: see --offload-folder"


def _text(card: ModelInfo) -> Iterator[tuple[str, str]]:
    """Yield rows on the tokens that begin and end texts, and on the file's sampling settings."""
    yield "chat", _chat(card)
    yield "begins with", _special(card.begin) if card.begin and card.add_begin else "nothing added"
    ends = [card.behind] if card.behind and not card.config.is_causal else card.ends
    for i, end in enumerate(ends):
        yield "" if i else "ends with", _special(end)
    if card.mask:
        yield "mask", _special(card.mask)
    if card.sampling:
        yield "sampling", ", ".join(f"{k} {shown(v)}" for k, v in card.sampling.items())
        yield "", "recommended by the file, and no default here: give options for them"


def _each_token(card: ModelInfo) -> str:
    """Return a token's bytes in the KV cache, and how many stay when no window has the token."""
    stays = sum(group.bytes_per_token for group in card.kv.groups if not group.window)
    later = "" if stays == card.kv_bytes else f", {stays:,} once it is past the windows"
    return f"{card.kv_bytes:,} bytes a token{later}"


def _heads(c: ModelConfig) -> str:
    """Return how many query heads there are, and which keys and values they share."""
    if isinstance(c, DeepSeek):
        stored = f"a latent of {c.latent.rank} numbers and {c.latent.rotated} with positions"
        return f"{c.heads} heads on {stored}, which all share"
    if isinstance(c, Gemma4):
        widths = " and ".join(map(str, sorted({heads.head_dim for heads in c.own_heads})))
        again = sum(heads.reads != layer for layer, heads in enumerate(c.own_heads))
        read = "layer reads" if again == 1 else "layers read"
        sharing = f"; {again} {read} the keys and values of earlier ones" if again else ""
        return f"{c.heads} heads, {widths} wide{sharing}"
    if not c.heads:
        return "none"
    return f"{c.heads} heads on {c.kv_heads} of keys and values, {c.head_dim} wide"


def _attention(c: ModelConfig) -> str:
    blocks = isinstance(c.attention, int)
    kind = f"block-causal, in blocks of {c.attention} tokens" if blocks else c.attention
    if c.attention == "canvas":
        kind = "causal, but a block of a canvas sees all of itself"
    if c.attention == "prefix-lm":
        kind = "causal, but a prompt sees all of itself"
    return f"{kind}; rows predict the next position" if c.shift else str(kind)


def _positions(c: ModelConfig) -> str:
    if c.learned_positions:
        return "learned"
    r = c.rope
    parts = [f"rope, base {r.base:,.0f}, {r.dim} of {c.head_dim} rotated"]
    if r.linear_factor != 1:
        parts.append(f"stretched {r.linear_factor:g} times")
    if r.yarn:
        parts.append(f"stretched {r.yarn.factor:g} times by yarn")
    return ", ".join(parts)


def _chat(card: ModelInfo) -> str:
    if card.template is None and not card.config.is_causal:
        fills = "noise" if card.config.noise else "what is masked"
        return f"none: it attends in both directions, and fills in {fills}"
    if card.template is None:
        return "no template: completion only"
    text = f"by the template in {card.template_origin}"
    writes = card.begin and any(n in card.template for n in ("bos_token", card.begin.name))
    if card.begin and card.add_begin and writes:
        text += f"; the {card.begin.name} that it writes is not doubled"
    return text


def _special(token: Special) -> str:
    return f"{token.name} ({token.id}), from {token.origin}"
