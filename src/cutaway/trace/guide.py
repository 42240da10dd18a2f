"""A guide: a question, and short sentences beside a page of recorded runs that open places in them.

Knows its form as data. Refuses to know how runs are made, and how a page draws it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.trace.read import Trace
from cutaway.trace.record import Json


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run of a page. One whose parent is among the runs before it is shown as its fork.

    name   what the page calls it
    looks  by step, files of ``cutaway.features.inside.page_arrays``
    """

    trace: Trace
    name: str
    looks: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """A sentence, and the place that it opens.

    run    its number on the page, from 1
    shows  what is selected in it, as the page's address has it: step, panel, candidate, pass,
           other (the run that it is compared with), inside (by, map, head, part)
    """

    text: str
    run: int
    shows: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Guide:
    """What a page of runs teaches.

    links  words → address, below the guide
    """

    title: str
    question: str
    points: tuple[Point, ...]
    answer: str
    links: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        """As the page reads it."""
        return {
            "title": self.title,
            "question": self.question,
            "points": [{"text": p.text, "shows": {**p.shows, "run": p.run}} for p in self.points],
            "answer": self.answer,
            "links": [*self.links.items()],
        }
