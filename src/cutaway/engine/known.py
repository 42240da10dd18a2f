"""What is known of an output before it is computed: forced tokens, and those of a replay.

Knows the request's tokens and what stands in the output. Refuses to know rows, and how tokens are
drawn.
"""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from cutaway.engine.events import Step
from cutaway.errors import ReplayError

if TYPE_CHECKING:
    from cutaway.engine.sequence import Sequence

_OTHERS = (
    "other weights, settings or arithmetic wrote that; give those, or ask for it without replay"
)


class Known:
    """Of one sequence. ``RunParams`` says what forced tokens and a replay are.

    strayed  the output is not what the replay begins with, though it may yet be taken back
    """

    def __init__(self, forced: tuple[int, ...], replay: tuple[int, ...]) -> None:
        self._forced, self._replay = forced, replay
        self.strayed = False

    def is_forced(self, index: int) -> bool:
        """Whether the token at this index of the output is given, and not drawn."""
        return index < len(self._forced)

    def forced(self, index: int, count: int) -> list[int]:
        """The forced ones of ``count`` tokens from this index on."""
        return [*self._forced[index : index + count]]

    def ahead(self, index: int, count: int) -> list[int]:
        """The first of those that are known from this index on: of one kind, ``count`` at most."""
        known = self._forced if self.is_forced(index) else () if self.strayed else self._replay
        return [*known[index : index + max(count, 0)]]

    def num_ahead(self, index: int) -> int:
        """How many are known from this index on."""
        known = max(len(self._forced), 0 if self.strayed else len(self._replay))
        return max(known - index, 0)

    def follow(self, output: list[int], first: int) -> None:
        """The output has changed from its token ``first`` on; nothing was wrong before that."""
        pairs = zip(output[first:], self._replay[first:], strict=False)
        self.strayed |= any(token_id != replayed for token_id, replayed in pairs)

    def unlike(self, sequence: "Sequence", steps: Items[Step]) -> ReplayError | None:
        """What is wrong with steps that nobody takes back: the replay has others, or more."""
        replay, length = self._replay, len(sequence.output_token_ids)
        for step in steps:
            if step.index < len(replay) and step.token_id != replay[step.index]:
                drawn, replayed = map(sequence.named, (step.token_id, replay[step.index]))
                return ReplayError(
                    f"replay: token {step.index} is {drawn} when it is drawn again, and {replayed} "
                    f"in the replay: {_OTHERS}"
                )
        if sequence.finish_reason and length < len(replay):
            return ReplayError(
                f"replay: the text ends after {length} tokens ({sequence.finish_reason}), and the "
                f"replay has {len(replay)}: {_OTHERS}"
            )
        return None
