"""What ``LLM`` and ``AsyncLLM`` have in common: one model, its prompts, its options.

Refuses to know who steps the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from cutaway.base.checks import check_ids, shown
from cutaway.compute.backends import Backend
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.model import Graph, ModelConfig
from cutaway.engine import ConstraintParams, Engine, Limits, Policy, Request
from cutaway.errors import InputError
from cutaway.files import hub
from cutaway.requests.breakers import with_breakers
from cutaway.requests.options import Options, parse_options
from cutaway.requests.prompts import Prompt, check_prompt
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.grammar.source import KINDS

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.engine import Denoise
    from cutaway.requests.keywords import GrammarOptions
    from cutaway.text.grammar import Accepted, Compiled
    from cutaway.text.tools import Tool

Message = Mapping[str, Any]


class Asked(NamedTuple):
    """One prompt of a request, read: what the engine is to be asked.

    text   the prompt, where it was a text
    notes  what a reader should know: see ``Completion``
    held   its grammar, which is compiled as long as this is here
    """

    request: Request
    text: str | None
    notes: tuple[str, ...]
    held: "Compiled | None" = None


class ModelUser:
    """A loaded model and how its prompts and options are read."""

    def __init__(self, model: LoadedModel, progress: bool) -> None:
        self.model, self.progress = model, progress

    # -- what the model is ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the model, as traces and answers report it."""
        return self.model.name

    @property
    def load_s(self) -> float:
        """Seconds that loading took."""
        return self.model.load_s

    @property
    def room(self) -> int:
        """Tokens that a text can have at most, prompt included."""
        return min(self.model.context, self.model.kv_tokens)

    @property
    def config(self) -> ModelConfig:
        """The model's own figures."""
        return self.model.config

    @property
    def graph(self) -> Graph:
        """Its ops."""
        return self.model.graph

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocabulary."""
        return self.model.tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """Its chat template."""
        return self.model.template

    @property
    def backend(self) -> Backend:
        """What computes its logits."""
        return self.model.backend

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model.name}>"

    def __reduce__(self) -> NoReturn:
        raise InputError(
            f"{type(self).__name__}: a loaded model cannot be copied or sent to another process; "
            "load it there"
        )

    # -- what is asked of it -------------------------------------------------------------------

    def parse_options(
        self,
        given: Mapping[str, Any],
        common: Mapping[str, Any] | None = None,
        *,
        traced: bool = False,
    ) -> Options:
        """As ``request.parse_options``, with DRY's breakers as tokens of this model."""
        both = {**(common or {}), **given}
        breakers = with_breakers(both, self.tokenizer).get("dry_breakers")
        if breakers is not None:
            given = {**given, "dry_breakers": breakers}
        return parse_options(given, common, traced=traced)

    def read(self, prompt: Prompt, options: Options) -> Asked:
        """A prompt with its options, as the engine is asked; InputError where it is none."""
        prompt = check_prompt(prompt)
        text = prompt if isinstance(prompt, str) else None
        ids = self.read_prompt(prompt, options)
        if options.suffix and options.denoise is None:
            text, (ids, options) = None, self._around_gap(ids, options)
        notes, held = [*self.tokenizer.notes(ids, text if options.special else None)], None
        if (grammar := options.constraint.source) is not None:
            held = self.model.grammars.compile(grammar)  # here, and not where the engine steps
            notes += self.model.grammars.notes(grammar)
        if options.constraint.heal is True:
            ids, options = self._healed(ids, options)
        ids, decoder = self._decoder(ids, options)
        if decoder and options.sources["max_tokens"] == "default":
            options = self._fitting(options, len(ids) + len(decoder.behind))
        request = options.request(ids, tuple(self.tokenizer.end_ids), decoder)
        request = request.but(adapter=self.adapter_hash(options.adapter))
        if options.interventions:
            from cutaway.engine.interventions import bind

            request = replace(
                request, interventions=bind(options.interventions, self.graph, len(ids))
            )
        return Asked(request, text, tuple(notes), held)

    def adapter_hash(self, name: str) -> str:
        """What a ``Request`` says of an adapter that is named; "": it names none.

        InputError for a name that was not loaded.
        """
        return self.model.with_adapter(name).request_adapter

    def _fitting(self, options: Options, around: int) -> Options:
        """As many cells as are usual, or as fit beside so many tokens: there is no shorter end."""
        cells = max(1, min(options.stopping.max_tokens, self.model.context - around))
        return replace(options, stopping=replace(options.stopping, max_tokens=cells))

    def _decoder(self, ids: list[int], options: Options) -> "tuple[list[int], Denoise | None]":
        """How a prompt is gone on with, and what of it is before what is written."""
        if options.denoise is None:
            return ids, None
        from cutaway.engine import Denoise

        tokenizer, after = self.tokenizer, list[int]()
        if options.suffix:
            if self.config.attention != "bidirectional":
                raise InputError(
                    "suffix: this model does not see what is behind a canvas: leave it out"
                )
            self.check_length(options.suffix)
            after = tokenizer.encode(options.suffix, special=options.special, goes_on=True)
        ends = tokenizer.sep_id is not None and ids[-1:] == [tokenizer.sep_id]
        ids, after = (ids[:-1], [*after, ids[-1]]) if ends else (ids, after)
        never = None if self.config.is_causal else tokenizer.mask_id
        return ids, Denoise(options.denoise, never, tuple(after))

    def _healed(self, ids: list[int], options: Options) -> tuple[list[int], Options]:
        """Take the last token back, where it is text and not all of the prompt."""
        heals = len(ids) > 1 and bool(self.tokenizer.token_bytes(ids[-1]))
        heal = ids[-1] if heals else False
        constraint = replace(options.constraint, heal=heal)
        return ids[:-1] if heals else ids, replace(options, constraint=constraint)

    def _around_gap(self, ids: list[int], options: Options) -> tuple[list[int], Options]:
        """Lay out prompt and suffix as the model was trained to see them; its ends are stops."""
        if (middle := self.tokenizer.middle) is None:
            raise InputError(
                "suffix: this model has no fill-in-the-middle tokens, so that its text is chosen "
                "once all candidates are written: ask for it whole, with generate"
            )
        self.check_length(options.suffix)
        behind = self.tokenizer.encode(options.suffix, special=options.special, goes_on=True)
        begun = ids[:1] == [self.tokenizer.bos_id]
        ids = [*ids[:begun], *middle.lay_out(ids[begun:], behind)]
        if len(ids) > (limits := limits_of(self.model)).longest_prompt:
            raise limits.too_long(len(ids), "suffix and prompt have")
        if options.stopping.ignore_eos:
            return ids, options
        ends = (*options.stopping.stop_token_ids, *middle.ends)
        return ids, replace(options, stopping=replace(options.stopping, stop_token_ids=ends))

    def read_prompt(self, prompt: Prompt, options: Options) -> list[int]:
        """The token ids of a prompt; InputError where it is none."""
        prompt = check_prompt(prompt)
        if isinstance(prompt, str):
            self.check_length(prompt)
            return self.tokenize(prompt, special=options.special)
        if options.special:
            raise InputError("special says how to read a text, and the prompt is token ids")
        return list(prompt)

    def chat_ids(
        self, messages: Iterable[Message], tools: "Sequence[Tool]" = (), **variables: Any
    ) -> list[int]:
        """The token ids of a conversation in the model's own template, ready to be answered.

        variables: more of what the template may ask for (enable_thinking, ...)
        """
        if self.template is None:
            limits_of(self.model).check_past()  # which says what else can be done
            raise InputError("this model has no chat template; use generate with a plain prompt")
        return self.template.encode(
            read_messages(messages), self.tokenizer, self.check_length, tools, **variables
        )

    def tokenize(self, text: str, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text. Special tokens are parsed only with special=True."""
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids; special=True shows control tokens by name."""
        return self.tokenizer.decode(check_ids("ids", ids), special=special)

    def accepts(self, text: str, **constraint: "Unpack[GrammarOptions]") -> "Accepted":
        """Whether a text could be written under a constraint, and where not.

        constraint: one of json_schema (with json_compact), regex, grammar and choice, as for
        generate. Nothing is computed by the model. Raises InputError for a bad constraint.
        """
        given: Mapping[str, Any] = constraint
        if unknown := given.keys() - {*KINDS, "json_compact"}:
            raise InputError(f"{min(unknown)} is no constraint of a whole text")
        if (grammar := ConstraintParams(**given).source) is None:
            raise InputError("accepts needs one of json_schema, regex, grammar and choice")
        from cutaway.text.grammar import accepts

        return accepts(text, grammar)

    def check_length(self, text: str) -> None:
        """TooLongError for a prompt that must be too long: reading megabytes takes a minute."""
        least, limits = self.tokenizer.min_tokens(text), limits_of(self.model)
        if least > limits.longest_prompt:
            raise limits.too_long(f"at least {least}")


def read_messages(messages: Iterable[Message]) -> list[Message]:
    """The messages of a conversation; InputError where they are no list."""
    try:
        return [*messages]
    except TypeError:
        raise InputError(f"messages must be a list of messages, not {shown(messages)}") from None


def common_options(options: Mapping[str, Any]) -> Options:
    """Those of all requests, checked; InputError where they cannot go for several."""
    parsed = parse_options(options)
    if parsed.trace is not None:
        raise InputError("trace: name a file of its own in the options of each request")
    return parsed


def limits_of(model: LoadedModel) -> Limits:
    """What the model itself imposes."""
    tokenizer = model.tokenizer
    return Limits(
        context_length=model.context,
        vocab_size=tokenizer.vocab_size,
        end_ids=frozenset(tokenizer.end_ids),
        attention=model.config.attention,
        shift=model.config.shift,
        mask_id=tokenizer.mask_id,
        has_head=model.graph.has_head,
    )


def make_engine(model: LoadedModel, policy: Policy | None = None) -> Engine:
    """An engine on the model's backend, which no other may step meanwhile."""
    token_bytes = lru_cache(8192)(model.tokenizer.token_bytes)
    named = [model.with_adapter(name) for name in model.adapters]
    adapters = {each.adapter: each.backend for each in named}
    return Engine(
        model.backend, limits_of(model), token_bytes, lambda: model.grammars, policy,
        adapters=adapters,
    )  # fmt: skip


def load_draft(name: str, model: LoadedModel, engine: Engine, *, progress: bool) -> None:
    """Load the draft model; InputError where sequences run, or it cannot draft for this one."""
    from cutaway.requests.draft import draft_model

    if not engine.is_idle:
        raise InputError("speculate: another draft model cannot be loaded while texts run")
    engine.speculator.draft = draft_model(hub.resolve(name, progress=progress), model)


ModelName = str | PathLike[str]
Prompts = Sequence[str] | Sequence[Sequence[int]]
