"""The requests of ``/infill``: a text between two others, with more of a project before them.

Knows llama-server's fields and the layout of its prompts; nothing of answers.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from cutaway.api.async_model import AsyncModel
from cutaway.errors import InputError
from cutaway.requests.keywords import fields_at
from cutaway.server.body import Body, Unsupported, examples, optional
from cutaway.server.service import Service
from cutaway.server.shared.keyword_fields import own_form, with_keywords
from cutaway.server.shared.request_models import Read, TextFields, bias_of
from cutaway.text.tokenizers.vocabulary import FimTokens

_LEFT_OUT = {"n", "align", "special", "prompt_logprobs", "denoise"}  # one text, as llama-server's
_NO_EFFECT = "is read and has no effect; a note in the answer says so"
_NOTES: Mapping[str, tuple[Any, str]] = {
    "samplers": (None, "samplers: not applied; chain says which stages there are, in their order"),
    "n_indent": (0, "n_indent: not applied; a text ends by its own tokens, stop or n_predict"),
    "t_max_prompt_ms": (None, "t_max_prompt_ms: not applied, or no request could be repeated"),
    "t_max_predict_ms": (None, "t_max_predict_ms: not applied, or no request could be repeated"),
}
"""Fields that editors send -> the value that asks for nothing, and the note on others."""


class ExtraText(Body):
    """Another text of the project."""

    text: str
    filename: str = Field("tmp", description="where the model has a token for names of files")
    time: int | None = optional("ignored")


_Infill: Any = with_keywords(
    "_Infill", TextFields, [name for name in own_form("completions") if name not in _LEFT_OUT]
)


class InfillRequest(_Infill):  # type: ignore[misc]  # as TextFields
    """What is before a gap and behind it."""

    FACE, PROMPT, FILL = "completions", "input_prefix", True
    model_config = examples(
        {"input_prefix": "def double(x):\n    return ", "input_suffix": "\n", "n_predict": 8}
    )
    schema_shown: ClassVar[bool] = False

    input_prefix: str = Field(description="the text before the gap")
    input_suffix: str = Field(description="the text behind it")
    input_extra: list[ExtraText] | None = optional("texts that are put before both", fail_fast=True)
    prompt: str = Field("", description="how the text in the gap begins; not part of the answer")
    n_predict: int | None = optional(
        "new tokens at most; -1 or left out: as many as fit; 0: the prompt is read into the cache"
    )
    n_probs: int | None = optional("the likeliest tokens beside each", ge=0, le=1000)
    repeat_penalty: float | None = optional("llama-server's name of repetition_penalty")
    return_tokens: bool = Field(False, description="include the new tokens")
    response_fields: list[str] | None = optional(
        "only these fields of a whole answer; a/b is the field b of a", fail_fast=True
    )
    id_slot: int | None = optional("ignored: any sequence continues what any other has read")
    samplers: list[str] | None = optional(_NO_EFFECT, fail_fast=True)
    n_indent: int | None = optional(_NO_EFFECT)
    t_max_prompt_ms: float | None = optional(_NO_EFFECT)
    t_max_predict_ms: float | None = optional(_NO_EFFECT)
    unsupported: ClassVar[Unsupported] = {
        "n_keep": ((0, -1), "nothing is cut here; leave it out"),
        "mirostat": ((0,), "is not supported; leave it out"),
        "lora": (([],), "an adapter is asked for by its name, as model"),
        "suffix": (("",), "is input_suffix here"),
        "max_tokens": ((), "did you mean 'n_predict'?"),
    }

    @property
    def readings(self) -> list[str]:
        """Of what has no effect, too."""
        told = [n for name, (none, n) in _NOTES.items() if getattr(self, name) not in (None, none)]
        return [*super().readings, *told]

    def called(self) -> Mapping[str, str]:
        """A keyword -> the name of its field in this request."""
        return {
            **fields_at(self.FACE), "prompt": "input_prefix", "max_tokens": "n_predict",
            "logprobs": "n_probs", "repetition_penalty": "repeat_penalty",
        }  # fmt: skip

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        given: dict[str, Any] = super().keywords()
        if self.repeat_penalty is not None:
            if self.repetition_penalty is not None:
                raise InputError("repeat_penalty is repetition_penalty: give one")
            given["repetition_penalty"] = self.repeat_penalty
        if self.logit_bias is not None:
            given["logit_bias"] = bias_of(self.logit_bias)
        if self.n_predict is not None and self.n_predict != -1:
            given["max_tokens"] = self.n_predict
        if self.n_predict == 0:
            given["prompt_logprobs"] = 1  # or nothing would be asked of it
        if self.n_probs:
            given["logprobs"] = self.n_probs
        return given

    async def read(self, service: Service) -> Read:
        """The prompt with the model's tokens for a gap, at whose ends the text ends."""
        llm, given = service.llm, await asyncio.to_thread(self.keywords)
        if (fim := llm.tokenizer.fim) is None:
            raise InputError(
                "input_suffix: this model has no fill-in-the-middle tokens; suffix of "
                "/v1/completions does without (docs/fill.md)"
            )
        if not self.ignore_eos:
            given["stop_token_ids"] = [*(self.stop_token_ids or ()), *fim.ends]
        return Read([await llm.in_turn(self._length, self._laid_out, llm, fim)], given)

    @property
    def _length(self) -> int:
        """Of its texts, in characters."""
        extra = sum(len(one.text) for one in self.input_extra or ())
        return len(self.input_prefix) + len(self.input_suffix) + len(self.prompt) + extra

    def _laid_out(self, llm: AsyncModel, fim: FimTokens) -> list[int]:
        """The prompt, in the order of llama-server."""
        for text in (self.input_prefix, self.input_suffix, self.prompt):
            llm.check_length(text)
        before = llm.tokenize(self.input_prefix)
        begun = before[:1] == [llm.tokenizer.bos_id]
        gap = fim.lay_out(before[begun:], _ids(llm, self.input_suffix))
        return [*before[:begun], *self._extra(llm, fim), *gap, *_ids(llm, self.prompt)]

    def _extra(self, llm: AsyncModel, fim: FimTokens) -> Iterator[int]:
        """The other texts, each with its name where the model has a token for names."""
        extra: Sequence[ExtraText] = self.input_extra or ()
        if fim.file is not None and fim.repository is not None:
            yield from (fim.repository, *_ids(llm, "myproject\n"))
        for one in extra:
            llm.check_length(one.text)
            name = "\n\n--- snippet ---\n\n" if fim.file is None else f"{one.filename}\n"
            yield from () if fim.file is None else (fim.file,)
            yield from _ids(llm, name + one.text)
        if fim.file is not None:
            yield from (fim.file, *_ids(llm, "filename\n"))


def _ids(llm: AsyncModel, text: str) -> list[int]:
    """Of a text that is not the prompt's beginning."""
    return llm.tokenizer.encode(text, special=False, goes_on=True)
