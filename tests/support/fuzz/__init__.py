"""Fuzzing of strangers' files and requests: each input must work, or raise a CutawayError.

Knows how inputs are made from a seed, tried and counted, and the format of each kind.
``tools/fuzz.py`` runs all formats for a given time, ``tests/files/test_fuzz.py`` for a second each.
"""

from support.fuzz.families import Families, FamilyFiles
from support.fuzz.folders import Drafter, Folder
from support.fuzz.format import Format
from support.fuzz.models import Gguf, Quantise
from support.fuzz.records import Indexes, Prefixes, Receipts, TraceFiles
from support.fuzz.requests import Forms, Grammars

_FORMATS = (
    Gguf, FamilyFiles, Quantise, Folder, Families, Drafter, Prefixes, Indexes, TraceFiles, Receipts,
    Forms, Grammars,
)  # fmt: skip
FORMATS: dict[str, type[Format]] = {format.name: format for format in _FORMATS}
"""All formats, by name."""
