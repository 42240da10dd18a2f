"""The oracle: another engine's answers held against the model, token by token."""

from cutaway.features.evidence.oracle.examination import Oracle, oracle
from cutaway.features.evidence.oracle.hypotheses import Finding
from cutaway.features.evidence.oracle.reading import Distance, Fit, TokenReading
from cutaway.features.evidence.oracle.told import Told, read_told, write_rows, write_told

__all__ = [
    "Distance",
    "Finding",
    "Fit",
    "Oracle",
    "TokenReading",
    "Told",
    "oracle",
    "read_told",
    "write_rows",
    "write_told",
]  # fmt: skip
