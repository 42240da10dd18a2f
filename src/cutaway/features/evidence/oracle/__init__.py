"""The oracle: another engine's answers held against the model, token by token."""

from cutaway.features.evidence.oracle.examination import Oracle, oracle
from cutaway.features.evidence.oracle.findings import Finding
from cutaway.features.evidence.oracle.fit import Distance, Fit
from cutaway.features.evidence.oracle.reading import TokenReading
from cutaway.features.evidence.oracle.rows import write_rows
from cutaway.features.evidence.oracle.told import Told, read_told, write_told

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
