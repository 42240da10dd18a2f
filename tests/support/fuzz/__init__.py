"""What strangers' files and requests may do: end whole, or in a sentence of the package's own.

Knows how inputs are made from a seed, tried and counted, and what each format is.
``tools/fuzz.py`` runs them as long as is wanted, ``tests/files/test_fuzz.py`` for a second each.
"""

from support.fuzz.format import Format
from support.fuzz.models import Folder, Gguf, Quantise
from support.fuzz.records import Indexes, Prefixes, Receipts, TraceFiles
from support.fuzz.requests import Forms, Grammars

FORMATS: dict[str, type[Format]] = {
    format.name: format
    for format in (Gguf, Quantise, Folder, Prefixes, Indexes, TraceFiles, Receipts, Forms, Grammars)
}
"""All formats, by name."""
