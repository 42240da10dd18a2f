"""What one request may ask of a served model, so that none holds up the others.

Knows the most texts, figures and computed tokens of a request. Does not know protocols, nor queues.
"""

from collections.abc import Sequence
from functools import partial

from cutaway.api.async_model import AsyncModel
from cutaway.compute.backends import KV_BLOCK
from cutaway.engine.canvas import Rule, most_computed, most_passes
from cutaway.errors import InputError
from cutaway.methods.infill import NUM_CONTINUATIONS, NUM_WEIGHED
from cutaway.requests.base import Prompt
from cutaway.requests.options import Options
from cutaway.requests.prepared import infills_by_bayes

MOST_TEXTS = 128
"""The most samples of all prompts of one request."""
MOST_ROWS = 1 << 17
"""The most tokens that a request to fill in text, or one without the KV cache, may compute: a
small model needs 1 to 2 minutes."""
MOST_CANVAS_ROWS = 1 << 20
"""The most tokens that the passes over the canvases of a bidirectional model may compute: 256
cells, revealed one by one, after a prompt of 3,840 tokens. Others' steps run between them."""
MOST_BESIDE = 1 << 20
"""The most tokens that one request may report, track or bias besides those of its texts; also the
most cells that the passes over its canvases may compute. Each takes 500 bytes."""

MOST_LOGITS = 1 << 30
"""The most logits that one pass over a canvas may compute: 4 GB."""


async def check_limits(
    llm: AsyncModel, prompts: Sequence[Prompt], options: Options, *, stream: bool, trace: bool
) -> None:
    """InputError for a request that is too much, which names the field.

    stream, trace  whether the client asked for a stream, or for traces
    """
    texts = len(prompts) * options.n
    _check_texts(texts, options)
    _check_figures(llm, prompts, texts, options)
    if options.denoise:
        _check_passes(llm, texts, options, options.denoise)
        await _check_passes_rows(llm, prompts, options, options.denoise)
    if infills_by_bayes(llm, options):
        await _check_infill(llm, prompts, options, stream=stream, trace=trace)
    elif _is_uncached(options):
        await _check_uncached(llm, prompts, options)


def _check_texts(texts: int, options: Options) -> None:
    if texts > MOST_TEXTS:
        raise InputError(
            "n",
            f" times the number of prompts is {texts}; at most {MOST_TEXTS} samples a request",
        )
    if options.run.replay and texts > 1:
        raise InputError("replay", " is of one text: ask for one prompt at a time")
    max_tokens = options.stopping.max_tokens
    for name in ("forced", "replay"):
        if (length := len(getattr(options.run, name))) > max_tokens:
            raise InputError(
                name,
                f" has {length} token ids, and max_tokens is {max_tokens}: "
                "raise max_tokens, or give fewer",
            )


def _check_figures(
    llm: AsyncModel, prompts: Sequence[Prompt], texts: int, options: Options
) -> None:
    generated = texts * min(options.stopping.max_tokens, llm.room)
    read = sum(min(len(prompt), llm.room) for prompt in prompts)
    for name, per_token, tokens in (
        ("logprobs", options.logprobs, generated),
        ("logprobs", options.prompt_logprobs, read),
        ("candidates", options.candidates, generated),
        ("track", len(options.track), generated),
        ("logit_bias", len(options.sampling.logit_bias), texts),
    ):
        if per_token * tokens > MOST_BESIDE:
            raise InputError(
                name,
                f": {per_token} for each of up to {tokens} are more than {MOST_BESIDE} in "
                "all; ask for fewer, or for less text",
            )


def _check_passes(llm: AsyncModel, texts: int, options: Options, rule: Rule) -> None:
    attention, cells = llm.config.attention, options.stopping.max_tokens
    looks = most_computed(rule, cells, attention)
    block, vocab = min(rule.block or cells, cells, llm.room), llm.tokenizer.vocab_size
    if isinstance(attention, str) and block * vocab > MOST_LOGITS:
        raise InputError(
            "block",
            f": a pass over {block} cells computes logits of {vocab} tokens for each, and a pass "
            f"may have {MOST_LOGITS} logits: give a block of at most {MOST_LOGITS // vocab} cells",
        )
    if texts * looks > MOST_BESIDE:
        raise InputError(
            "max_tokens",
            f": the passes over {texts} canvases look at {texts * looks} cells, "
            f"and {MOST_BESIDE} are the most: ask for fewer cells, samples or steps",
        )


async def _check_passes_rows(
    llm: AsyncModel, prompts: Sequence[Prompt], options: Options, rule: Rule
) -> None:
    """InputError for many passes, each of which computes prompt and canvas again."""
    if llm.config.attention != "bidirectional":
        return
    cells = options.stopping.max_tokens
    passes = most_passes(rule, cells, "bidirectional")
    suffix = await _count(llm, options.suffix or "", add_bos=False)
    texts = [await _count(llm, prompt) + cells + suffix for prompt in prompts]
    fitting = [text for text in texts if text <= llm.room]  # others are refused as too long
    rows = options.n * sum(_pass_rows(rule, text, cells + suffix, passes) for text in fitting)
    if rows > MOST_CANVAS_ROWS:
        raise InputError(
            "max_tokens",
            f": the passes over the canvas would compute up to {rows} tokens, prompt and canvas "
            f"again in each, and one request may have {MOST_CANVAS_ROWS}: ask for fewer cells, "
            "samples or steps, or shorten the prompt",
        )


def _pass_rows(rule: Rule, text: int, canvas: int, passes: int) -> int:
    """Return how many tokens all passes compute: with a ``cache``, all of a text once a block."""
    if rule.cache == "exact":
        return passes * text
    return -(-canvas // (rule.block or max(canvas, 1))) * text + passes * canvas


async def _check_infill(
    llm: AsyncModel, prompts: Sequence[Prompt], options: Options, *, stream: bool, trace: bool
) -> None:
    """InputError for filling in by Bayes' rule in a way that it has not, or too many tokens."""
    kinds = {"stream": stream, "trace": trace, "kv_cache": _is_uncached(options)}
    for name, is_set in kinds.items():
        if is_set:
            raise InputError(
                name,
                f": this model has no fill-in-the-middle tokens, so that a text "
                "before a suffix is chosen once all candidates are written: leave out "
                f"{name} or suffix",
            )
    suffix = await _count(llm, options.suffix or "", add_bos=False)
    generated = NUM_CONTINUATIONS * (min(options.stopping.max_tokens, llm.room) + 1)
    rows = len(prompts) * options.n * (generated + NUM_WEIGHED * (suffix + KV_BLOCK))
    if rows > MOST_ROWS:
        raise InputError(
            "suffix",
            f": up to {rows} tokens would be computed, and one request may have "
            f"{MOST_ROWS}: lower max_tokens or n, or shorten the suffix",
        )


async def _check_uncached(llm: AsyncModel, prompts: Sequence[Prompt], options: Options) -> None:
    """InputError for a long text without the KV cache, whose steps each compute all of it."""
    longest = options.stopping.max_tokens
    lengths = [await _count(llm, prompt) for prompt in prompts]
    rows = options.n * sum(_uncached_rows(n, min(n + longest, llm.room)) for n in lengths)
    if rows > MOST_ROWS:
        raise InputError(
            "kv_cache",
            f": without it up to {rows} tokens would be computed, and one request may have "
            f"{MOST_ROWS}: lower max_tokens or n, or leave kv_cache out",
        )


async def _count(llm: AsyncModel, text: Prompt, *, add_bos: bool | None = None) -> int:
    """Return the number of a text's tokens."""
    if not isinstance(text, str):
        return len(text)
    llm.check_length(text)
    read = partial(llm.tokenize, text, add_bos=add_bos)
    return len(await llm.read_in_turn(len(text), read))


def _is_uncached(options: Options) -> bool:
    """Return whether a client, and not the server's operator, asks for no KV cache."""
    return not options.run.kv_cache and options.sources["kv_cache"] == "given"


def _uncached_rows(prompt: int, end: int) -> int:
    """Return how many tokens the steps from a prompt's end to a text's compute: all before each."""
    return max(end - prompt, 0) * (prompt + end - 1) // 2
