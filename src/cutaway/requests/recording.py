"""Records made before the first step: the head of a trace, and the first answer to the page.

A server and the folder of a page with a model of its own both make that answer here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cutaway._version import __version__
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Denoise, Request
from cutaway.requests.keywords import fields_at
from cutaway.requests.prepared import Prepared
from cutaway.trace import Head, Token
from cutaway.trace.record import DecoderRecord, GrammarRecord, SizesRecord


def head_of(prepared: Prepared, chain: Iterable[Mapping[str, Any]], model: LoadedModel) -> Head:
    """Return the head of one sample's trace; its seed is chosen."""
    request, options = prepared.request, prepared.options
    seed, computer, observe = request.sampling.seed, model.computer, request.observe
    assert seed is not None
    params = options.settings(seed)
    if options.denoise and options.suffix:  # otherwise the prompt's tokens include the suffix
        params |= {"suffix": options.suffix, "special": options.special}
    return Head(
        cutaway=__version__,
        model=model.name,
        weights=model.identity.weights,
        tokenizer=model.identity.tokenizer,
        backend=computer.name,
        tier=computer.tier,
        threads=computer.threads,
        vocab_size=model.tokenizer.vocab_size,
        prompt=prepared.text,
        prompt_token_ids=request.prompt_token_ids,
        chain=tuple(dict(stage) for stage in chain),
        params=params,
        seed=seed,
        candidates=observe.top,
        tracked_ids=observe.track,
        end_ids=tuple(model.tokenizer.end_ids),
        kv_bytes_per_token=model.kv.bytes_per_token,
        grammar=GrammarRecord.from_grammar(request.constraint.source),
        interventions=options.interventions,
        decoder=_decoder(request, model),
        sizes=sizes_of(model),
    )


def without_draft_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the kind of drafts alone: the path of a draft model is private."""
    return {**params, "speculate": str(params["speculate"]).partition(":")[0]}


def token_of(model: LoadedModel, token_id: int) -> Token:
    """Return a token as traces have it."""
    tokenizer = model.tokenizer
    data = tokenizer.token_bytes(token_id)
    return Token(token_id, data, None if data else tokenizer.token_name(token_id))


def sizes_of(model: LoadedModel) -> SizesRecord:
    """Return the sizes of a model, as traces have them."""
    config = model.config
    return SizesRecord(
        layers=config.layers, heads=config.heads, kv_heads=config.kv_heads, hidden=config.hidden,
        mlp=model.graph.mlp_width, experts=config.experts, experts_used=config.experts_used,
    )  # fmt: skip


def _decoder(request: Request, model: LoadedModel) -> DecoderRecord | None:
    """The record of a canvas's decoder; None for other texts."""
    if not isinstance(decoder := request.decoder, Denoise):
        return None
    attention, shift = model.config.attention, model.config.shift
    return DecoderRecord(decoder.rule, attention, shift, decoder.mask_id, decoder.suffix_ids)


# -- what the page asks first ------------------------------------------------------------------


def page_about(
    model: str, weights: str, context: int, attention: str | int, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a model's name, the hash of its weights, and the default settings of a request.

    context: the most tokens of prompt and text together. attention: see ``ModelConfig``
    """
    defaults = without_draft_path(defaults)
    return {
        "model": model,
        "weights": weights,
        "version": __version__,
        "context": context,
        "attention": attention,
        "defaults": {name: defaults[name] for name in fields_at("chat") if name in defaults},
    }
