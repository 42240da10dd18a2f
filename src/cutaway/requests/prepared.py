"""From a prompt and options to the engine's request."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.engine import Request
from cutaway.errors import InputError
from cutaway.requests.base import BaseLLM, limits_of
from cutaway.requests.options import Options
from cutaway.requests.prompts import Prompt, check_prompt

if TYPE_CHECKING:
    from cutaway.engine import Denoise
    from cutaway.text.grammar.compiler import Compiled


class Prepared(NamedTuple):
    """One prompt of a request.

    request  for the engine, with its grammar compiled
    options  the settings in force, as changed by the prompt
    text     the prompt, where it was a text
    notes    see ``Completion``
    """

    request: Request
    options: Options
    text: str | None
    notes: tuple[str, ...]


def prepare(
    llm: BaseLLM, prompt: Prompt, options: Options, grammar: "Compiled | None" = None
) -> Prepared:
    """Prepare a prompt; InputError where it cannot be run.

    grammar: the options' grammar, if it is compiled already
    """
    prompt = check_prompt(prompt)
    text = prompt if isinstance(prompt, str) else None
    ids = llm.read_prompt(prompt, options)
    if options.suffix and options.denoise is None:
        text, (ids, options) = None, _around_gap(llm, ids, options)
    notes = [*llm.tokenizer.notes(ids, text if options.special else None)]
    if (source := options.constraint.source) is not None:
        from cutaway.text.grammar.compiler import notes_on

        grammar = grammar or llm.model.grammars.compile(source)
        notes += notes_on(source, grammar)
    if options.constraint.heal is True:
        ids, options = _healed(llm, ids, options)
    ids, decoder = _decoder(llm, ids, options)
    if decoder:
        room = llm.model.context - len(ids) - len(decoder.suffix_ids)
        options = fitted(options, min(options.stopping.max_tokens, room))
    request = options.request(ids, tuple(llm.tokenizer.end_ids), decoder)
    parts: dict[str, Any] = {"adapter": llm.adapter_hash(options.adapter), "grammar": grammar}
    if options.interventions:
        from cutaway.engine.interventions import bind

        parts["interventions"] = bind(options.interventions, llm.graph, len(ids))
    return Prepared(request.but(**parts), options, text, tuple(notes))


def infills_by_bayes(llm: BaseLLM, options: Options) -> bool:
    """Whether a suffix is given, the model has no fill-in-the-middle tokens, and no canvas."""
    return bool(options.suffix) and options.denoise is None and llm.tokenizer.fim is None


def fitted(options: Options, max_tokens: int) -> Options:
    """Options with this ``max_tokens``, at least 1, unless the request or the server set it."""
    if options.sources["max_tokens"] != "default":
        return options
    return replace(options, stopping=replace(options.stopping, max_tokens=max(1, max_tokens)))


def _decoder(llm: BaseLLM, ids: list[int], options: Options) -> "tuple[list[int], Denoise | None]":
    """The prompt's ids before the canvas, and the canvas's decoder; None without a canvas."""
    if options.denoise is None:
        return ids, None
    from cutaway.engine import Denoise

    tokenizer, after = llm.tokenizer, list[int]()
    if options.suffix:
        if llm.config.attention != "bidirectional":
            raise InputError("suffix: this model does not see what follows a canvas: leave it out")
        after = _suffix_ids(llm, options)
    ends = tokenizer.sep_id is not None and ids[-1:] == [tokenizer.sep_id]
    ids, after = (ids[:-1], [*after, ids[-1]]) if ends else (ids, after)
    never = None if llm.config.is_causal else tokenizer.mask_id
    return ids, Denoise(options.denoise, never, tuple(after))


def _suffix_ids(llm: BaseLLM, options: Options) -> list[int]:
    llm.check_length(options.suffix)
    return llm.tokenizer.encode(options.suffix, special=options.special, goes_on=True)


def _healed(llm: BaseLLM, ids: list[int], options: Options) -> tuple[list[int], Options]:
    """Remove the last token to draw it again, if it is text and not the whole prompt."""
    heals = len(ids) > 1 and bool(llm.tokenizer.token_bytes(ids[-1]))
    heal = ids[-1] if heals else False
    constraint = replace(options.constraint, heal=heal)
    return ids[:-1] if heals else ids, replace(options, constraint=constraint)


def _around_gap(llm: BaseLLM, ids: list[int], options: Options) -> tuple[list[int], Options]:
    """Lay out prompt and suffix with the model's FIM tokens, whose ends become stop tokens."""
    if (middle := llm.tokenizer.fim) is None:
        raise InputError(
            "suffix: this model has no fill-in-the-middle tokens, so that its text is chosen "
            "once all candidates are written: ask for it whole, with generate"
        )
    suffix = _suffix_ids(llm, options)
    begun = ids[:1] == [llm.tokenizer.bos_id]
    ids = [*ids[:begun], *middle.lay_out(ids[begun:], suffix)]
    if len(ids) > (limits := limits_of(llm.model)).longest_prompt:
        raise limits.too_long(len(ids), "suffix and prompt have")
    if options.stopping.ignore_eos:
        return ids, options
    ends = (*options.stopping.stop_token_ids, *middle.ends)
    return ids, replace(options, stopping=replace(options.stopping, stop_token_ids=ends))
