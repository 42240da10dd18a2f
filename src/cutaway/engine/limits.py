"""The limits of a model: its context, its vocabulary, its attention (causal mask or other)."""

from collections.abc import Iterable
from dataclasses import dataclass

from cutaway.compute.backends import KV_BLOCK
from cutaway.errors import InputError, Name, TooLongError


def last_seen(attention: str | int, position: int, length: int) -> int:
    """Return the last position, below ``length``, that the token at a position attends to.

    Attention "canvas" sees more within a block that is denoised, "prefix-lm" within a prompt.
    """
    if attention in ("causal", "canvas", "prefix-lm"):
        return position
    if isinstance(attention, str):
        return length - 1
    return min((position // attention + 1) * attention, length) - 1


def shares_blocks(attention: str | int) -> bool:
    """Whether texts of one salt share KV blocks that begin alike; see ``Request.salt_for``."""
    return attention in ("causal", "canvas", "prefix-lm") or (
        isinstance(attention, int) and KV_BLOCK % attention == 0
    )


_MASKED = "cutaway denoise or cutaway fill (over HTTP: /v1/completions with denoise, or /v1/fill)"
_NOISY = "cutaway denoise (over HTTP: /v1/completions with denoise)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that the model itself imposes.

    model      the model's name, for errors
    attention  which tokens a token attends to: "causal", itself and those before it;
               "bidirectional", the whole text; a number n, block-causal: all up to the end of its
               own block of n tokens; "canvas": itself and those before it, and within the block
               that is denoised the whole block; "prefix-lm": itself and those before it, and in
               a prompt the whole prompt
    shift      whether a row predicts the next position, where attention is not causal
    mask_id    the mask token
    signal     how many numbers the model reads of each cell of a canvas besides its token: what
               the last pass predicted there; 0: none
    canvas_length  the most cells of a block, where attention is "canvas"; 0: any number
    begins_as_noise  whether the model's canvases begin as random tokens
    has_head   whether the model predicts tokens
    padding_ids  rows of the output matrix that stand for no token, and are never drawn
    """

    context_length: int
    vocab_size: int
    end_ids: frozenset[int]
    attention: str | int = "causal"
    shift: bool = False
    mask_id: int | None = None
    signal: int = 0
    canvas_length: int = 0
    begins_as_noise: bool = False
    has_head: bool = True
    padding_ids: tuple[int, ...] = ()
    model: str = "this model"

    @property
    def is_causal(self) -> bool:
        """Whether a token after a text changes nothing in the text, so that it can be continued."""
        return self.attention in ("causal", "prefix-lm")

    @property
    def fills_masks(self) -> bool:
        """Whether the model can predict the masked tokens of a text."""
        return self.mask_id is not None and not self.is_causal and self.attention != "canvas"

    def longest(self, prompt_tokens: int, max_tokens: int) -> int:
        """The most tokens that a text can have, its prompt included."""
        return min(prompt_tokens + max_tokens, self.context_length)

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt."""
        return self.context_length - 1

    def too_long(
        self, tokens: object, field: str = "prompt", predicate: str = " has"
    ) -> TooLongError:
        """Return the error for a prompt of too many tokens.

        LangChain and LiteLLM recognise "prompt is too long" and "this model's maximum context
        length is". They can then shorten a conversation or ask another model.

        tokens: how many, as a number or in words ("at least 9000")
        predicate: follows the field's name, as in "prompt has", "suffix and prompt have"
        """
        return TooLongError(
            field,
            f"{predicate} {tokens} tokens, and this model's maximum context length is "
            f"{self.context_length}, of which one is for the answer: the prompt is too "
            "long, shorten it",
        )

    def check_head(self) -> None:
        """Raise InputError where the model predicts no tokens."""
        if not self.has_head:
            raise InputError(
                "this model has no head that predicts tokens: it makes vectors of texts, with embed"
            )

    def check_causal(self, instead: str | None = None) -> None:
        """Raise InputError where attention is not causal: the model cannot continue a text.

        instead: what to use such a model for
        """
        self.check_head()
        if not self.is_causal:
            kind, usual = ("diffusion", _NOISY) if self.begins_as_noise else ("masked", _MASKED)
            instead = instead or usual
            raise InputError(
                f"{self.model} is a {kind} model and cannot continue a text; use {instead}"
            )

    def check_bidirectional(self, ids: tuple[int, ...]) -> None:
        """Raise InputError where attention is causal, or the model cannot read these tokens."""
        if self.is_causal:
            raise InputError(
                "this model continues texts: it predicts the next token, and none within a text"
            )
        self.check_head()
        self.check_read(ids)

    def check_read(self, ids: tuple[int, ...]) -> None:
        """Raise InputError where the model cannot read these tokens."""
        if len(ids) > self.context_length:
            raise InputError(
                f"the text has {len(ids)} tokens, and {self.context_length} can be read: shorten it"
            )
        self.check_scored(ids)

    def check_canvas(self, total: int, prompt: int, block: int | None, *, has_start: bool) -> None:
        """Raise InputError where the model cannot reveal a canvas.

        total: tokens of the text, its prompt included
        block: the rule's block size, where it has one
        has_start: whether there is a token for cells that are not revealed: a mask, or noise
        """
        self.check_head()
        self._check_reveals(block, has_start=has_start)
        if (
            self.canvas_length
            and (size := min(block or total, total - prompt)) > self.canvas_length
        ):
            raise InputError(
                "block",
                f": this model reveals at most {self.canvas_length} cells together, not {size}: "
                f"give {self.canvas_length} or fewer",
            )
        if total > self.context_length:
            raise TooLongError(
                "prompt",
                f" and canvas have {total} tokens, {prompt} of them the prompt's, and this "
                f"model's maximum context length is {self.context_length}: shorten the prompt or "
                "lower ",
                Name("max_tokens"),
            )
        if not prompt and (self.shift or self.is_causal):
            raise InputError(
                "prompt", " is empty and this model has no begin token: write something"
            )

    def _check_reveals(self, block: int | None, *, has_start: bool) -> None:
        """Raise InputError where the model's attention cannot reveal a canvas of any size."""
        if self.attention == "prefix-lm":
            raise InputError(
                "denoise",
                ": this model reads its prompt to both sides, and writes with generate alone: "
                "leave it out",
            )
        if self.is_causal:
            if block != 1:
                raise InputError(
                    "this model's attention is causal: it writes from left to right, with generate"
                )
        elif not has_start:
            raise InputError(
                "start",
                " is mask, and this model reveals no masks: its canvas begins as noise, or it "
                "names no mask token; give start noise",
            )
        elif isinstance(self.attention, int) and block not in (None, self.attention):
            raise InputError(
                "block", f": this model's blocks have {self.attention} tokens: leave it out"
            )

    def check_prompt(self, prompt: tuple[int, ...]) -> None:
        """Raise InputError where the model cannot continue this prompt."""
        if not prompt:
            raise InputError(
                "prompt", " is empty and this model has no begin token: write something"
            )
        if len(prompt) > self.longest_prompt:
            raise self.too_long(len(prompt))
        self.check_ids("prompt", prompt)

    def check_scored(self, prompt: tuple[int, ...]) -> None:
        """Raise InputError where the model cannot score these tokens."""
        if not 0 < len(prompt) <= self.context_length:
            raise InputError(
                "token_ids", f" must hold 1 to {self.context_length} ids, not {len(prompt)}"
            )
        self.check_ids("token_ids", prompt)

    def check_ids(self, name: str, ids: Iterable[int]) -> None:
        """Raise InputError naming an id that is not in the vocabulary."""
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                last = self.vocab_size - 1
                raise InputError(name, f": token id {token_id} is not between 0 and {last}")
