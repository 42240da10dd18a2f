"""Cuts texts to be scored into prompt and answer tokens, and long ones into windows, as lm-eval."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.base.checks import check_bool
from cutaway.errors import InputError, TooLongError
from cutaway.requests.base import limits_of
from cutaway.requests.prompts import Prompt, check_prompt

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

Ids = tuple[int, ...]


class Cut(NamedTuple):
    """A prompt and its answer as tokens."""

    prompt: Ids
    answer: Ids


class Cutter:
    """Cuts prompts and answers into tokens. Raises InputError naming the argument.

    Token ids are kept. White space at the end of a prompt belongs to the answer. Both are encoded
    as one text, whose tokens after the prompt's own are the answer's. Where a token would span the
    two, the answer is encoded by itself. An empty prompt is BOS.
    special: parse special tokens such as <|im_start|> in texts
    adapter: the name of a loaded adapter; "": none
    """

    def __init__(self, llm: "BaseLLM", *, special: bool = False, adapter: str = "") -> None:
        self.adapter = llm.adapter_hash(adapter)
        self._special = check_bool("special", special)
        self._llm, self._limits = llm, limits_of(llm.model)
        self._limits.check_causal("fill and pseudo_likelihood")
        self.room = llm.room
        self._encode_prompt = lru_cache(16)(self._encode)

    def pair(self, prompt: Any, answer: Any, name: str = "answer", before: str = "prompt") -> Cut:
        """Cut one prompt and answer. name, before: their names in errors."""
        prompt, answer = check_prompt(prompt, before), check_prompt(answer, name)
        least = [self._least(prompt), self._least(answer)]
        if max(least) > self.room + 1:  # reading megabytes takes a minute
            raise self._too_long(before, name, *(f"at least {length}" for length in least))
        cut = self._cut(prompt, answer)
        if not cut.answer:
            raise InputError(f"{name} has no tokens: give one that is not empty")
        cut = Cut(cut.prompt or self._begin(before), cut.answer)
        if len(cut.prompt) + len(cut.answer) > self.room + 1:  # the last token is not read
            raise self._too_long(before, name, len(cut.prompt), len(cut.answer))
        for told, ids in ((before, cut.prompt), (name, cut.answer)):
            self._limits.check_ids(told, ids)
        return cut

    def whole(self, text: Any) -> Ids:
        """The tokens of a text of any length, after BOS if the model has one."""
        text = check_prompt(text, "text")
        ids, begin = self._encode(text), self._llm.tokenizer.bos_id
        if isinstance(text, str) and begin is not None and ids[:1] != (begin,):
            ids = begin, *ids
        if len(ids) < 2:
            raise InputError(
                "the text has no token after its first, which alone is not scored: write more"
            )
        self._limits.check_ids("text", ids)
        return ids

    def _cut(self, prompt: Prompt, answer: Prompt) -> Cut:
        if not (isinstance(prompt, str) and isinstance(answer, str)):
            return Cut(self._encode_prompt(_hashable(prompt)), self._encode(answer, goes_on=True))
        bare = prompt.rstrip()
        answer = prompt[len(bare) :] + answer
        before, both = self._encode_prompt(bare), self._encode(bare + answer)
        if both[: len(before)] == before:
            return Cut(before, both[len(before) :])
        return Cut(before, self._encode(answer, goes_on=True))

    def _encode(self, text: Prompt, *, goes_on: bool = False) -> Ids:
        if not isinstance(text, str):
            return tuple(map(int, text))
        encode = self._llm.tokenizer.encode
        return tuple(encode(text, special=self._special, goes_on=goes_on))

    def _least(self, text: Prompt) -> int:
        return self._llm.tokenizer.min_tokens(text) if isinstance(text, str) else len(text)

    def _too_long(self, before: str, name: str, *tokens: object) -> TooLongError:
        lengths = " and ".join(map(str, tokens))
        return TooLongError(
            f"{before} and {name} have {lengths} tokens, and this model's maximum context length "
            f"is {self.room}, which the last token may exceed: shorten one"
        )

    def _begin(self, name: str) -> Ids:
        begin = self._llm.tokenizer.bos_id
        if begin is None:
            raise InputError(f"{name} is empty and this model has no begin token: write something")
        return (begin,)


def _hashable(prompt: Prompt) -> Prompt:
    return prompt if isinstance(prompt, str) else tuple(prompt)


def windows(ids: Ids, size: int, before: int = 1) -> Iterator[Cut]:
    """Parts of a text that together score each token but the first once, in order.

    A part computes at most ``size`` tokens. The first scores all it can, the others as many as
    leave ``before`` tokens of context; the last has as much context as fits.
    """
    done, last = 0, len(ids) - 1  # tokens that are scored
    while done < last:
        count = min(last - done, size if not done else size - before + 1)
        end = done + count
        yield Cut(ids[max(end - size, 0) : done + 1], ids[done + 1 : end + 1])
        done = end
