"""What a format is to be fuzzed: sound files, damaged inputs, and what a user does with them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random
from typing import ClassVar

from cutaway.errors import CutawayError

LONGEST = 2000
"""Characters of a refusal: what it quotes is cut. The longest lists all families."""


class Format(ABC):
    """A kind of input that strangers send.

    name     as commands and folders of the corpus have it
    inputs   how many the usual run tries: about a second
    kernels  whether it runs models, so that each instruction set has a turn
    folder   what its sound files, in ``seeds/``, were made with
    """

    name: ClassVar[str]
    inputs: ClassVar[int]
    kernels: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name

    def write_seeds(self) -> None:
        """Write sound files, where they are not there yet."""
        if not (whole := self.folder / "whole").exists():
            (self.folder / "seeds").mkdir(parents=True, exist_ok=True)
            self.make()
            whole.touch()

    @abstractmethod
    def make(self) -> None:
        """Write the sound files."""

    @cached_property
    def seeds(self) -> list[Path]:
        """The sound files, in an order that does not change."""
        return sorted((self.folder / "seeds").iterdir())

    def scratch(self, name: str) -> Path:
        """A path for a file or folder of one input; of each process its own."""
        folder = self.folder / f"scratch-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        return folder / name

    def written(self, ending: str, data: bytes) -> Path:
        """A file with these bytes."""
        path = self.scratch(f"input{ending}")
        path.write_bytes(data)
        return path

    def close(self) -> None:
        """End the model that inputs are tried with."""
        if llm := self.__dict__.pop("llm", None):
            llm.close()

    @abstractmethod
    def draw(self, rng: Random) -> bytes:
        """An input; the same for a generator in the same state."""

    @abstractmethod
    def use(self, data: bytes) -> None:
        """What a user does with it. CutawayError where it is refused; all else is a finding."""


def check_sentence(error: CutawayError) -> None:
    """AssertionError unless a refusal is one line that a terminal can show."""
    sentence = str(error)
    assert sentence and sentence.isprintable(), (
        f"a refusal that cannot be shown: {sentence[:200]!r}"
    )
    assert len(sentence) <= LONGEST, f"a refusal of {len(sentence)} characters: {sentence[:200]!r}"


def use_any(*uses: Callable[[], object]) -> None:
    """Try all; raise the first refusal where none ran whole."""
    refused: list[CutawayError] = []
    for use in uses:
        try:
            use()
        except CutawayError as error:
            check_sentence(error)
            refused.append(error)
    if len(refused) == len(uses):
        raise refused[0]
