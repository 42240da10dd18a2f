"""A prompt and options become the engine's request: the text laid out, the canvas, the limits.

Nothing here runs the request.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.engine import Request
from cutaway.errors import InputError
from cutaway.requests.base import BaseLLM, Prompt, check_prompt, limits_of
from cutaway.requests.options import Options

if TYPE_CHECKING:
    from cutaway.engine import Denoise
    from cutaway.text.grammar.compiler import Compiled


class Prepared(NamedTuple):
    """One prompt of a request.

    request  for the engine, with its grammar compiled
    options  the settings in force, as changed by the prompt
    text     the prompt, if it was given as text
    notes    see ``Completion``
    """

    request: Request
    options: Options
    text: str | None
    notes: tuple[str, ...]


def prepare(
    llm: BaseLLM, prompt: Prompt, options: Options, grammar: "Compiled | None" = None
) -> Prepared:
    """Prepare a prompt; InputError if the model cannot run it.

    grammar: the options' grammar, if it is compiled already
    """
    prompt = check_prompt(prompt)
    text = prompt if isinstance(prompt, str) else None
    ids = llm.read_prompt(prompt, options)
    if options.suffix and options.denoise is None:
        text, (ids, options) = None, _lay_out_gap(llm, ids, options)
    notes = [*llm.tokenizer.notes(ids, text if options.special else None)]
    if (source := options.constraint.source) is not None:
        from cutaway.text.grammar.compiler import notes_on

        grammar = grammar or llm.model.grammars.compile(source)
        notes += notes_on(source, grammar)
    if options.constraint.heal is True:
        ids, options = _heal(llm, ids, options)
    ids, decoder = _make_decoder(llm, ids, options)
    if decoder:
        room = llm.model.context - len(ids) - len(decoder.suffix_ids)
        options = fit_max_tokens(options, min(options.stopping.max_tokens, room))
    request = options.request(ids, tuple(llm.tokenizer.end_ids), decoder)
    parts: dict[str, Any] = {"adapter": llm.adapter_hash(options.adapter), "grammar": grammar}
    if options.interventions:
        from cutaway.engine.interventions import bind

        parts["interventions"] = bind(options.interventions, llm.graph, len(ids))
    return Prepared(request.but(**parts), options, text, tuple(notes))


def infills_by_bayes(llm: BaseLLM, options: Options) -> bool:
    """Whether a suffix needs Bayes' rule: the model has no FIM tokens, and there is no canvas."""
    return bool(options.suffix) and options.denoise is None and llm.tokenizer.fim is None


def fit_max_tokens(options: Options, max_tokens: int) -> Options:
    """Set ``max_tokens``, to at least 1, unless the request or the server has set it."""
    if options.sources["max_tokens"] != "default":
        return options
    return replace(options, stopping=replace(options.stopping, max_tokens=max(1, max_tokens)))


def _make_decoder(
    llm: BaseLLM, ids: list[int], options: Options
) -> "tuple[list[int], Denoise | None]":
    """Return the ids before the canvas, and the canvas's decoder; None without a canvas."""
    if options.denoise is None:
        return ids, None
    from cutaway.engine import Denoise

    tokenizer, after = llm.tokenizer, list[int]()
    if options.suffix:
        if llm.config.attention != "bidirectional":
            raise InputError(
                "suffix", ": this model does not see what follows a canvas: leave it out"
            )
        after = _suffix_ids(llm, options)
    ends = tokenizer.sep_id is not None and ids[-1:] == [tokenizer.sep_id]
    ids, after = (ids[:-1], [*after, ids[-1]]) if ends else (ids, after)
    has_no_mask = llm.config.is_causal or llm.config.noise is not None
    never = None if has_no_mask else tokenizer.mask_id
    return ids, Denoise(options.denoise, never, tuple(after))


def _suffix_ids(llm: BaseLLM, options: Options) -> list[int]:
    llm.check_length(options.suffix)
    return llm.tokenizer.encode(options.suffix, special=options.special, goes_on=True)


def _heal(llm: BaseLLM, ids: list[int], options: Options) -> tuple[list[int], Options]:
    """Remove the last token, which is drawn again, if it has text and is not the only one."""
    heals = len(ids) > 1 and bool(llm.tokenizer.token_bytes(ids[-1]))
    heal = ids[-1] if heals else False
    constraint = replace(options.constraint, heal=heal)
    return ids[:-1] if heals else ids, replace(options, constraint=constraint)


def _lay_out_gap(llm: BaseLLM, ids: list[int], options: Options) -> tuple[list[int], Options]:
    """Join prompt and suffix by the model's FIM tokens; FIM's end tokens become stop tokens."""
    if (middle := llm.tokenizer.fim) is None:
        raise InputError(
            "suffix",
            ": this model has no fill-in-the-middle tokens, so that its text is chosen "
            "once all candidates are written: ask for it whole, with generate",
        )
    suffix = _suffix_ids(llm, options)
    has_bos = ids[:1] == [llm.tokenizer.bos_id]
    ids = [*ids[:has_bos], *middle.lay_out(ids[has_bos:], suffix)]
    if len(ids) > (limits := limits_of(llm.model)).longest_prompt:
        raise limits.too_long(len(ids), "suffix", " and prompt have")
    if options.stopping.ignore_eos:
        return ids, options
    ends = (*options.stopping.stop_token_ids, *middle.ends)
    return ids, replace(options, stopping=replace(options.stopping, stop_token_ids=ends))
