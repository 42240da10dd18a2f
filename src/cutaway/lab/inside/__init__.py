"""The inside of a step of any run on record: attention, layers and pushes, computed again exactly.

Knows what follows from a row's tensors. Refuses to know terminals and how an op is computed.
"""

from cutaway.lab.inside.embedding import Nearest, nearest
from cutaway.lab.inside.ending import EndPushes, end_pushes
from cutaway.lab.inside.lens import Lens
from cutaway.lab.inside.look import Look, OtherRowError, inside
from cutaway.lab.inside.pushes import Pushes
from cutaway.lab.inside.without import Without, without
from cutaway.lab.inside.written import written

__all__ = [
    "EndPushes", "Lens", "Look", "Nearest", "OtherRowError", "Pushes", "Without", "end_pushes",
    "inside", "nearest", "without", "written",
]  # fmt: skip
