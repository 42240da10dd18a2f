"""Interventions as data: what is scaled, added, patched or knocked out while one text is computed.

``llm.generate(prompt, interventions=[scale("L25.H2", 0), knock_out("3-7")])``: names of places,
what each intervention computes there, and where both are in a graph.
"""

from cutaway.engine.interventions.bound import Affine, BoundInterventions, bind, find
from cutaway.engine.interventions.intervention import (
    Intervention,
    add,
    check_interventions,
    control_vector,
    knock_out,
    parse_intervention,
    patch,
    scale,
)

blind = knock_out  # its earlier name

__all__ = [
    "Affine", "BoundInterventions", "Intervention", "add", "bind", "blind", "check_interventions",
    "control_vector", "find", "knock_out", "parse_intervention", "patch", "scale",
]  # fmt: skip
