"""Request: all that the engine needs for one sequence. Frozen, checked once, picklable.

``PrescribedTokens`` are output tokens that a request names: forced ones, or a replay's, which are
drawn again and compared. They are known in advance, so that one step computes many of them.
"""

import os
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_bool, check_choice, check_ids, check_int
from cutaway.engine.constraint.params import ConstraintParams
from cutaway.engine.decoders import Autoregressive
from cutaway.engine.events import FinishReason, Step
from cutaway.engine.stops import StopParams
from cutaway.errors import InputError, ReplayError
from cutaway.sampling import Observe, SamplingParams, Stage, derive_seed

if TYPE_CHECKING:
    from cutaway.engine.decoders import Decoder
    from cutaway.engine.interventions import BoundInterventions
    from cutaway.text.grammar.compiler import Compiled


NAMED_DRAFTS = {
    "draft": "draft model, draft:MODEL", "eagle": "head's folder, eagle:PATH",
    "dflash": "block drafter's folder or GGUF file, dflash:PATH",
    "dspark": "block drafter's folder or GGUF file, dspark:PATH",
    "assistant": "assistant's folder, assistant:PATH",
}  # fmt: skip
"""What ``speculate`` names after a colon, by the kind of drafts before it."""
SPECULATE = (
    "off", "ngram", "jacobi", "draft", "mtp", "eagle", "dflash", "dspark", "assistant",
)  # fmt: skip
_PRIORITIES = 2**31
_LONGEST_SALT = 256


def randbits(count: int) -> int:
    """Return a number of so many random bits, a multiple of 8, as the operating system gives them.

    ``secrets`` has the same, and loads a cryptographic library; ``random`` takes a millisecond.
    """
    return int.from_bytes(os.urandom(count // 8), "big")


@dataclass(frozen=True, kw_only=True)
class RunParams:
    """How a sequence is computed. Only ``forced`` changes a token.

    kv_cache   False computes the whole sequence again at every step: quadratic cost
    cache_prompt  False takes nothing from the prefix cache and leaves nothing there
    cache_salt  only texts of the same salt share the prefix cache; None: texts without a salt do.
               The salt is a secret: no repr, no record and no error shows it
    priority   lower goes first, in the queue and when KV blocks run out
    speculate  draft tokens: "off", "ngram" (from the sequence itself), "jacobi" (what the
               model drew in earlier steps), "draft" (a small model) or "mtp" (the model's own
               draft head)
    forced     the output begins with these token ids, whatever would be drawn; stops still apply
    replay     token ids with which the output begins, as the same request wrote them before: each
               is drawn again, many in a step, and the first that differs ends the sequence with a
               ReplayError

    Raises InputError naming the field.
    """

    kv_cache: bool = True
    cache_prompt: bool = True
    cache_salt: str | None = field(default=None, repr=False)
    priority: int = 0
    speculate: str = "off"
    forced: tuple[int, ...] = ()
    replay: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("kv_cache", "cache_prompt"):
            check_bool(name, getattr(self, name))
        _check_salt(self.cache_salt)
        priority = check_int("priority", self.priority, -_PRIORITIES, _PRIORITIES)
        object.__setattr__(self, "priority", priority)
        for name in ("forced", "replay"):
            object.__setattr__(self, name, check_ids(name, getattr(self, name)))
        for i, (forced, replayed) in enumerate(zip(self.forced, self.replay, strict=False)):
            if forced != replayed:
                raise InputError(
                    "replay",
                    f"[{i}] is {replayed}, and forced has {forced} there: "
                    "give the same, or leave one out",
                )
        check_choice("speculate", self.speculate, SPECULATE)


def new_salt() -> str:
    """Return a salt that no other text has."""
    return f"{randbits(128):032x}"


def _check_salt(salt: Any) -> None:
    """Raise InputError unless the salt is None or a bounded str; no error shows the salt."""
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= _LONGEST_SALT):
        return
    actual = f"of {len(salt)}" if isinstance(salt, str) else type(salt).__name__
    raise InputError(
        "cache_salt",
        f" must be a text of 1 to {_LONGEST_SALT} characters, not {actual}: leave it out "
        "to share the prefix cache with all texts that have none",
    )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt and how to continue it; the only thing that ``Engine.add`` takes.

    prompt_token_ids  of the prompt, its BOS included where it has one
    sampling          how to draw each token; the engine chooses a seed where it is None
    stopping          what ends the sequence
    constraint        which tokens may come at all
    run               how to compute the sequence
    observe           what to record of each step
    decoder           how to write the text
    interventions     changes of the model's activations, and positions hidden from attention
    adapter           the hash of the adapter to use (``LoadedModel.adapter``); "": none
    grammar           the grammar of ``constraint``, compiled; it is not pickled, so that another
                      process compiles it again

    Can be pickled, unless it has a user's processors or checks. Raises InputError naming the field.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stopping: StopParams = field(default_factory=StopParams)
    constraint: ConstraintParams = field(default_factory=ConstraintParams)
    run: RunParams = field(default_factory=RunParams)
    observe: Observe = field(default_factory=Observe)
    decoder: "Decoder" = field(default_factory=Autoregressive)
    interventions: "BoundInterventions | None" = None
    adapter: str = ""
    grammar: "Compiled | None" = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "grammar"}

    def __post_init__(self) -> None:
        ids = check_ids("prompt", self.prompt_token_ids)
        object.__setattr__(self, "prompt_token_ids", ids)

    @property
    def salt(self) -> tuple[int, str] | None:
        """Return (position, name): from there on, only texts of the same name share KV blocks.

        None: the text shares KV blocks with all other texts whose salt is None.
        """
        changed = self.interventions.salt if self.interventions else None
        if not self.adapter and self.run.cache_salt is None:
            return changed
        return 0, repr((self.adapter, changed, self.run.cache_salt))

    def num_bidirectional(self, attention: str | int) -> int:
        """How many first tokens attend to each other as a prompt; attention: the model's."""
        return self.decoder.prompt_length(self) if attention == "prefix-lm" else 0

    def salt_for(self, attention: str | int) -> tuple[int, str] | None:
        """Return the salt with a model's attention.

        Keys and values of a prompt that is read to both sides depend on all of it: only texts of
        the same whole prompt share them.
        """
        if not (length := self.num_bidirectional(attention)):
            return self.salt
        from hashlib import sha256

        prompt = sha256(repr(self.prompt_token_ids[:length]).encode()).hexdigest()
        return 0, repr((self.salt, prompt))

    @property
    def is_constrained(self) -> bool:
        """Whether draws may have a mask of allowed tokens."""
        return self.constraint.is_set or bool(self.decoder.banned_token_ids)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The sampling stages in force, in order."""
        return self.decoder.stages(self.sampling, constrained=self.is_constrained)

    def with_seed(self, seed: int) -> "Request":
        """Return the same request with this seed."""
        if seed == self.sampling.seed:
            return self
        return self.but(sampling=self.sampling.with_seed(seed))

    def but(self, **parts: Any) -> "Request":
        """Return a copy with these parts replaced, unchecked: the caller has checked them."""
        request = object.__new__(type(self))  # replace() would check 100,000 tokens for each sample
        request.__dict__.update(self.__dict__, **parts)
        return request

    def samples(self, count: int) -> "list[Request]":
        """Return ``count`` copies; the seed of the n-th derives from that of the first.

        A seed of None is chosen here.
        """
        seed = randbits(32) if self.sampling.seed is None else self.sampling.seed
        return [self.with_seed(derive_seed(seed, n)) for n in range(count)]


# -- prescribed tokens -----------------------------------------------------------------------------

_REPLAY_ADVICE = (
    "other weights, settings or arithmetic wrote that; give those, or ask for it without replay"
)


class PrescribedTokens:
    """The prescribed tokens of one sequence; see ``RunParams`` for forced tokens and replays.

    is_empty  whether there are none, as in most sequences
    diverged  whether the output differs from the replay; it may agree again after a rewind
    """

    def __init__(self, forced: tuple[int, ...], replay: tuple[int, ...]) -> None:
        self._forced, self._replay = forced, replay
        self.is_empty, self.diverged = not (forced or replay), False

    def is_forced(self, index: int) -> bool:
        """Whether the token at this index of the output is forced instead of drawn."""
        return index < len(self._forced)

    def get_forced(self, index: int, count: int) -> list[int]:
        """Return the forced tokens among ``count`` tokens from this index on."""
        return [*self._forced[index : index + count]]

    def next(self, index: int, count: int) -> list[int]:
        """Return the next prescribed tokens from this index on: at most ``count``, of one kind."""
        tokens = self._forced if self.is_forced(index) else () if self.diverged else self._replay
        return [*tokens[index : index + max(count, 0)]]

    def num_left(self, index: int) -> int:
        """How many tokens are prescribed from this index on."""
        length = max(len(self._forced), 0 if self.diverged else len(self._replay))
        return max(length - index, 0)

    def follow(self, output: list[int], first: int) -> None:
        """Compare the output's new tokens, from index ``first`` on, with the replay."""
        pairs = zip(output[first:], self._replay[first:], strict=False)
        self.diverged |= any(token_id != replayed for token_id, replayed in pairs)

    def mismatch_error(
        self, steps: Items[Step], length: int, finish_reason: FinishReason | None,
        describe_token: Callable[[int], str],
    ) -> ReplayError | None:  # fmt: skip
        """Return the error where final steps differ from the replay, or the replay is longer.

        length  tokens of the output
        """
        from cutaway.base.counting import count_from_1

        replay = self._replay
        for step in steps:
            if step.index < len(replay) and step.token_id != replay[step.index]:
                token, replayed_token = (
                    describe_token(step.token_id),
                    describe_token(replay[step.index]),
                )
                return ReplayError(
                    f"replay: token {count_from_1(step.index)} is {token} when it is drawn again, "
                    f"and {replayed_token} in the replay: {_REPLAY_ADVICE}"
                )
        if finish_reason and length < len(replay):
            return ReplayError(
                f"replay: the text ends after {length} tokens ({finish_reason}), and the replay "
                f"has {len(replay)}: {_REPLAY_ADVICE}"
            )
        return None
