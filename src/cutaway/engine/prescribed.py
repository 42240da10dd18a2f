"""Tokens that a request prescribes: forced ones, and a replay's, which are drawn and compared.

They are known before they are computed, so one step computes many, as it does draft tokens.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items

from cutaway.engine.events import FinishReason, Step
from cutaway.errors import ReplayError

_OTHERS = (
    "other weights, settings or arithmetic wrote that; give those, or ask for it without replay"
)


class PrescribedTokens:
    """The prescribed tokens of one sequence; see ``RunParams`` for forced tokens and replays.

    diverged  the output differs from the replay; tokens may still be taken back
    """

    def __init__(self, forced: tuple[int, ...], replay: tuple[int, ...]) -> None:
        self._forced, self._replay = forced, replay
        self.diverged = False

    def is_forced(self, index: int) -> bool:
        """Whether the token at this index of the output is given, and not drawn."""
        return index < len(self._forced)

    def forced(self, index: int, count: int) -> list[int]:
        """The forced tokens among ``count`` from this index on."""
        return [*self._forced[index : index + count]]

    def next(self, index: int, count: int) -> list[int]:
        """The first prescribed tokens from this index on: of one kind, ``count`` at most."""
        tokens = self._forced if self.is_forced(index) else () if self.diverged else self._replay
        return [*tokens[index : index + max(count, 0)]]

    def num_left(self, index: int) -> int:
        """How many are prescribed from this index on."""
        length = max(len(self._forced), 0 if self.diverged else len(self._replay))
        return max(length - index, 0)

    def follow(self, output: list[int], first: int) -> None:
        """Compare the output from index ``first`` on, where it is new, with the replay."""
        pairs = zip(output[first:], self._replay[first:], strict=False)
        self.diverged |= any(token_id != replayed for token_id, replayed in pairs)

    def mismatch_error(
        self, steps: Items[Step], length: int, ended: FinishReason | None,
        named: Callable[[int], str],
    ) -> ReplayError | None:  # fmt: skip
        """The error where final steps are not those of the replay, or the replay has more.

        length: of the output; ended: why it ended, if it did; named: a token as errors show it
        """
        replay = self._replay
        for step in steps:
            if step.index < len(replay) and step.token_id != replay[step.index]:
                drawn, replayed = named(step.token_id), named(replay[step.index])
                return ReplayError(
                    f"replay: token {step.index} is {drawn} when it is drawn again, and {replayed} "
                    f"in the replay: {_OTHERS}"
                )
        if ended and length < len(replay):
            return ReplayError(
                f"replay: the text ends after {length} tokens ({ended}), and the replay has "
                f"{len(replay)}: {_OTHERS}"
            )
        return None
