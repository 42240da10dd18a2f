"""BaseLLM reads a prompt and options with a loaded model; ``prepared.py`` makes the request."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache, partial
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cutaway.base.checks import check_ids, shown
from cutaway.compute.backends import Backend
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.model import Graph, ModelConfig
from cutaway.engine import ConstraintParams, Engine, Limits, Policy
from cutaway.engine.constraint import ConstraintVocabulary, WordAutomaton, unpack_mask
from cutaway.errors import InputError
from cutaway.requests.keywords import GrammarOptions
from cutaway.requests.options import Options, parse_options
from cutaway.requests.signatures import names_keywords
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.grammar import KINDS

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.store_settings import StoreSettings
    from cutaway.text.grammar.compiler import Accepted
    from cutaway.text.tools import Tool


Prompt = str | Sequence[int]


def one_or_many(prompt: Any) -> tuple[list[Any], bool]:
    """Return a list of prompts, and whether a list was given. An empty list is an empty prompt."""
    prompt = _plain(prompt)
    is_list = _is_list(prompt) and not _is_prompt(prompt)
    return (list(prompt) if is_list else [prompt]), is_list


def check_prompt(prompt: Any, name: str = "prompt") -> Prompt:
    """Return a prompt, with an array as a list of ids; InputError for anything else."""
    prompt = _plain(prompt)
    if not _is_prompt(prompt):
        raise InputError(name, f" must be a string or a list of token ids, not {shown(prompt)}")
    checked: Prompt = prompt
    return checked


def _plain(prompt: Any) -> Any:
    return prompt.tolist() if isinstance(prompt, np.ndarray) else prompt


def _is_list(prompt: Any) -> bool:
    """Whether a value may be a list of ids or of prompts; bytes are no such list."""
    raw = (str, bytes, bytearray, memoryview)
    return isinstance(prompt, Sequence) and not isinstance(prompt, raw)


def _is_prompt(prompt: Any) -> bool:
    is_id_list = _is_list(prompt) and all(isinstance(token_id, Integral) for token_id in prompt)
    return is_id_list or isinstance(prompt, str)


# -- a loaded model ----------------------------------------------------------------------------


Message = Mapping[str, Any]
DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's
MOST_BREAKERS = 4096  # bytes of all breakers, the same limit as for bad_words
MOST_STOPS = 64  # of a request over HTTP, or of a page
MOST_OF_STOPS = 4096  # characters of all stop strings: each text builds automata from them


class BaseLLM:
    """A loaded model that reads prompts and options; it computes nothing."""

    _INTERNAL: frozenset[str] = frozenset({
        "adapter_hash", "chat_ids", "check_length", "load_s", "parse_options", "progress",
        "read_prompt", "room",
    })  # fmt: skip
    """Names that other modules of the package use, and no user: ``dir`` leaves them out."""

    def __init__(self, model: LoadedModel, progress: bool) -> None:
        self.model, self.progress = model, progress

    # -- what the model is ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name in traces and answers."""
        return self.model.name

    @property
    def load_s(self) -> float:
        """Seconds that loading the model took."""
        return self.model.load_s

    @property
    def room(self) -> int:
        """The most tokens of a text, its prompt included."""
        return min(self.model.context, self.model.kv_tokens)

    @property
    def config(self) -> ModelConfig:
        """The model's hyperparameters."""
        return self.model.config

    @property
    def graph(self) -> Graph:
        """The model's graph of ops."""
        return self.model.graph

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None where it has none."""
        return self.model.template

    @property
    def backend(self) -> Backend:
        """The backend that computes the logits."""
        return self.model.backend

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model.name}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._INTERNAL]

    def __reduce__(self) -> NoReturn:
        raise InputError(
            f"{type(self).__name__}: a loaded model cannot be copied or sent to another process; "
            "load it there"
        )

    # -- what is asked of it -------------------------------------------------------------------

    def parse_options(
        self,
        keywords: Mapping[str, Any],
        common: Mapping[str, Any] | None = None,
        *,
        traced: bool = False,
    ) -> Options:
        """Parse keywords with ``options.parse_options``; turn DRY's breakers into token ids."""
        common = common or {}
        keywords, common = self._with_usual_rule(keywords, common)
        options = {**common, **keywords}
        if "dry_breakers" in options or _is_on(options.get("dry_multiplier")):
            breakers = self._breaker_ids(options.get("dry_breakers", DRY_BREAKERS))
            keywords = {**keywords, "dry_breakers": breakers}
        return parse_options(keywords, common, traced=traced)

    def _with_usual_rule(
        self, keywords: Mapping[str, Any], common: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Complete the rule of a canvas by what the model's file says; return both mappings.

        The file's temperatures are then the whole chain, unless the request says otherwise.
        """
        usual = usual_rule(self.model.config)
        of = keywords if "denoise" in keywords else common
        if usual is None or of.get("denoise") in (None, False):
            return keywords, common
        from cutaway.engine.canvas import with_usual

        of = {**of, "denoise": with_usual(of["denoise"], usual)}
        keywords, common = (of, common) if "denoise" in keywords else (keywords, of)
        return keywords, {"temperature": 1.0, "top_p": 1.0, **common}

    def _breaker_ids(self, breakers: Any) -> Any:
        """Return the ids among these breakers, and the ids of all tokens that contain a breaker."""
        if not isinstance(breakers, (list, tuple)):
            return breakers  # the sampler raises an error that names them
        try:
            strings = {part.encode() for part in breakers if isinstance(part, str)}
        except UnicodeEncodeError:
            raise InputError(
                "dry_breakers", " must be whole characters, not halves of them"
            ) from None
        if b"" in strings:
            raise InputError("dry_breakers", ": an empty string is in every token; leave it out")
        if (size := sum(map(len, strings))) > MOST_BREAKERS:
            raise InputError("dry_breakers", f" have {size} bytes; at most {MOST_BREAKERS} in all")
        ids = [part for part in breakers if not isinstance(part, str)]
        return ids + self._ids_with(tuple(sorted(strings))) if strings else ids

    @cached_property
    def _ids_with(self) -> Callable[[tuple[bytes, ...]], list[int]]:
        vocabulary = ConstraintVocabulary(limits_of(self.model), self.tokenizer.token_bytes)
        return lru_cache(16)(partial(_ids_with, vocabulary=vocabulary))

    def adapter_hash(self, name: str) -> str:
        """The hash that names a loaded adapter in a ``Request``; "" where ``name`` is "".

        InputError for an adapter that is not loaded.
        """
        return self.model.with_adapter(name).request_adapter

    def read_prompt(self, prompt: Prompt, options: Options) -> list[int]:
        """Return the token ids of a prompt; InputError if it is no prompt."""
        prompt = check_prompt(prompt)
        if isinstance(prompt, str):
            self.check_length(prompt)
            return self.tokenize(prompt, special=options.special)
        if options.special:
            raise InputError("special", " says how to read a text, and the prompt is token ids")
        return list(prompt)

    def chat_ids(
        self, messages: Iterable[Message], tools: "Sequence[Tool]" = (), **variables: Any
    ) -> list[int]:
        """Return the token ids of a conversation in the model's own template, ready to be answered.

        variables: other variables of the template (enable_thinking, …), and continue_final_message,
        which ends the prompt within the last message
        """
        if self.template is None:
            limits_of(self.model).check_causal()  # its error names what the model can do instead
            raise InputError("this model has no chat template; use generate with a plain prompt")
        return self.template.encode(
            read_messages(messages), self.tokenizer, self.check_length, tools, **variables
        )

    def tokenize(self, text: str, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Return the token ids of a text. Special tokens are parsed only with special=True."""
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, ids: Iterable[int], special: bool = False) -> str:
        """Return the text of token ids; special=True shows control tokens by name."""
        return self.tokenizer.decode(check_ids("ids", ids), special=special)

    @names_keywords(GrammarOptions)
    def accepts(self, text: str, **constraint: "Unpack[GrammarOptions]") -> "Accepted":
        """Return whether a constraint allows a text, and where it is refused.

        constraint: one of json_schema (with json_compact), regex, grammar and choice, as for
        generate. The model computes nothing. Raises InputError for a bad constraint.
        """
        return check_text(text, **constraint)

    def check_length(self, text: str) -> None:
        """Raise TooLongError if a prompt is certainly too long: tokenizing megabytes is slow."""
        least, limits = self.tokenizer.min_tokens(text), limits_of(self.model)
        if least > limits.longest_prompt:
            raise limits.too_long(f"at least {least}")


def check_text(text: str, **constraint: "Unpack[GrammarOptions]") -> "Accepted":
    """Return what ``BaseLLM.accepts`` returns, without a model."""
    options: Mapping[str, Any] = constraint
    if unknown := options.keys() - {*KINDS, "json_compact"}:
        raise InputError(min(unknown), " is no constraint of a whole text")
    if (grammar := ConstraintParams(**options).source) is None:
        raise InputError("accepts needs one of json_schema, regex, grammar and choice")
    from cutaway.text.grammar.compiler import accepts

    return accepts(text, grammar)


def _ids_with(words: tuple[bytes, ...], vocabulary: ConstraintVocabulary) -> list[int]:
    """Return the tokens that contain one of some byte strings, in one pass over all tokens."""
    free = unpack_mask(WordAutomaton(words, vocabulary).mask(0), vocabulary.limits.vocab_size)
    return [int(i) for i in np.flatnonzero(~free)]


def _is_on(multiplier: Any) -> bool:
    return isinstance(multiplier, Real) and bool(multiplier)


def read_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a conversation as a list; InputError unless they are iterable."""
    try:
        return [*messages]
    except TypeError:
        raise InputError(
            "messages", f" must be a list of messages, not {shown(messages)}"
        ) from None


def common_options(options: Mapping[str, Any]) -> Options:
    """Return the options common to all requests.

    InputError for a trace, since each request needs a file of its own.
    """
    parsed = parse_options(options)
    if parsed.trace is not None:
        raise InputError("trace", ": name a file of its own in the options of each request")
    return parsed


def usual_rule(config: ModelConfig) -> dict[str, Any] | None:
    """Return the settings of the rule that a file of a model of noise gives; None for others."""
    if config.noise is None:
        return None
    settings = {f.name: getattr(config.noise, f.name) for f in fields(config.noise)}
    length = settings.pop("canvas_length")
    block = length if config.attention == "canvas" else None  # others see all cells anyway
    return {"rule": "diffusion-gemma", "block": block, **settings}


def limits_of(model: LoadedModel) -> Limits:
    """Return the limits that the model imposes on requests."""
    tokenizer, config = model.tokenizer, model.config
    is_canvas = config.attention == "canvas"
    return Limits(
        context_length=model.context,
        vocab_size=tokenizer.vocab_size,
        end_ids=frozenset(tokenizer.end_ids),
        attention=config.attention,
        shift=config.shift,
        mask_id=tokenizer.mask_id,
        signal=config.hidden if is_canvas else 0,
        canvas_length=config.noise.canvas_length if is_canvas and config.noise else 0,
        begins_as_noise=config.noise is not None,
        has_head=model.graph.has_head,
        padding_ids=tokenizer.padding_ids,
        model=model.name,
    )


def make_engine(
    model: LoadedModel, policy: Policy | None = None, store: "StoreSettings | None" = None
) -> Engine:
    """Make an engine on the model's backend, which no other engine may use.

    store: where its prefix cache is kept on a disk; None: nowhere
    """
    token_bytes = lru_cache(8192)(model.tokenizer.token_bytes)
    adapted_models = [*map(model.with_adapter, model.adapters), *map(model.with_task, model.tasks)]
    adapters = {adapted.adapter: adapted.backend for adapted in adapted_models}
    engine = Engine(
        model.backend, limits_of(model), token_bytes, lambda: model.grammars, policy,
        adapters=adapters, canvas=model.canvas,
    )  # fmt: skip
    if store:
        store.open(model, engine)
    return engine


ModelName = str | PathLike[str]
