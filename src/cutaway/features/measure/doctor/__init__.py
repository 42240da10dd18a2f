"""The doctor: what a quantisation, of weights or of keys and values, costs on a text of one's own.

``Doctor`` reads a text with BASE once, and compares every position of it with a changed model: all
of it, or one tensor at a time. ``Doctor.mix`` proposes formats that fit into a size.
"""

from cutaway.features.measure.doctor.examination import (
    Doctor,
    ProposedMix,
    TensorChoice,
    check_draws,
    propose,
)
from cutaway.features.measure.doctor.findings import (
    Damage,
    Diagnosis,
    ModelChange,
    Parted,
    Positions,
    TensorCost,
    map_of_tensors,
)

__all__ = [
    "Damage",
    "Diagnosis",
    "Doctor",
    "ModelChange",
    "Parted",
    "Positions",
    "ProposedMix",
    "TensorChoice",
    "TensorCost",
    "check_draws",
    "map_of_tensors",
    "propose",
]  # fmt: skip
