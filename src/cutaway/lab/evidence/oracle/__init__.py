"""The oracle: another engine's answers held against the model, token by token."""

from cutaway.lab.evidence.oracle.examination import Oracle, oracle
from cutaway.lab.evidence.oracle.findings import Finding
from cutaway.lab.evidence.oracle.fit import Distance, Fit
from cutaway.lab.evidence.oracle.reading import TokenReading
from cutaway.lab.evidence.oracle.rows import write_rows
from cutaway.lab.evidence.oracle.told import Told, read_told, write_told

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
