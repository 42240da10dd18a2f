"""The interface of a fuzzed format: sound files, damaged inputs, and their use."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random
from typing import ClassVar

from cutaway.errors import CutawayError

LONGEST = 2000
"""The most characters of a refusal, whose quotations are cut. The longest lists all families."""


class Format(ABC):
    """A kind of input that strangers send.

    name     its name in commands and folders of the corpus
    inputs   number of inputs in the usual run: about a second
    kernels  whether it runs models, so that each instruction set is tried
    folder   has the sound files, in ``seeds/``, and the models that made them
    """

    name: ClassVar[str]
    inputs: ClassVar[int]
    kernels: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name

    def write_seeds(self) -> None:
        """Write the sound files, unless they exist."""
        if not (whole := self.folder / "whole").exists():
            (self.folder / "seeds").mkdir(parents=True, exist_ok=True)
            self.make()
            whole.touch()

    @abstractmethod
    def make(self) -> None:
        """Write the sound files."""

    @cached_property
    def seeds(self) -> list[Path]:
        """The sound files, in a fixed order."""
        return sorted((self.folder / "seeds").iterdir())

    def scratch(self, name: str) -> Path:
        """Return a path for a file or folder of one input, different in each process."""
        folder = self.folder / f"scratch-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        return folder / name

    def write_file(self, ending: str, data: bytes) -> Path:
        """Write a file with these bytes, and return its path."""
        path = self.scratch(f"input{ending}")
        path.write_bytes(data)
        return path

    def close(self) -> None:
        """Close the model that tries inputs."""
        if llm := self.__dict__.pop("llm", None):
            llm.close()

    @abstractmethod
    def draw(self, rng: Random) -> bytes:
        """Return an input, the same for a generator in the same state."""

    @abstractmethod
    def use(self, data: bytes) -> None:
        """Use an input as a user does. A CutawayError is a refusal, any other error a finding."""


def check_sentence(error: CutawayError) -> None:
    """Raise AssertionError unless a refusal is one line that a terminal can show."""
    sentence = str(error)
    assert sentence and sentence.isprintable(), (
        f"a refusal that cannot be shown: {sentence[:200]!r}"
    )
    assert len(sentence) <= LONGEST, f"a refusal of {len(sentence)} characters: {sentence[:200]!r}"


def use_any(*uses: Callable[[], object]) -> None:
    """Try all uses; raise the first refusal if all were refused."""
    refusals: list[CutawayError] = []
    for use in uses:
        try:
            use()
        except CutawayError as error:
            check_sentence(error)
            refusals.append(error)
    if len(refusals) == len(uses):
        raise refusals[0]
