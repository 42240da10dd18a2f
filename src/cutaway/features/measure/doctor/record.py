"""Measurements of an examination, on disk as they are made, so that one that was cut continues.

A file in the user's cache for each question: its name is a hash of all that the answers follow
from. A line that was cut is measured again.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from cutaway.errors import CutawayError
from cutaway.files.hub import cache_dir


class Record:
    """Answers by key, each one line of JSON. A cache that cannot be written is no error."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        """question: what the answers follow from, ready for JSON."""
        text = json.dumps(question, sort_keys=True)
        self._lines: dict[str, Any] = {}
        self._path: Path | None = None
        with suppress(OSError, CutawayError):
            path = cache_dir() / "doctor" / f"{sha256(text.encode()).hexdigest()[:32]}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._path = path
            self._read(path.read_bytes())

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """The answer on record; None where there is none."""
        return self._lines.get(key)

    def put(self, key: str, answer: Any) -> None:
        """Keep an answer."""
        self._lines[key] = answer
        if self._path is None:
            return
        with suppress(OSError), self._path.open("ab") as file:
            file.write(f"{json.dumps([key, answer])}\n".encode())

    def _read(self, text: bytes) -> None:
        for line in text.splitlines():
            with suppress(ValueError, TypeError):
                key, answer = json.loads(line)
                self._lines[str(key)] = answer
