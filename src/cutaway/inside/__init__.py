"""The inside of a step of any run on record: attention, layers and pushes, computed again exactly.

Knows what follows from a row's tensors. Refuses to know terminals and how an op is computed.
"""

from cutaway.inside.embedding import Nearest, nearest
from cutaway.inside.ending import EndPushes, end_pushes
from cutaway.inside.lens import Lens
from cutaway.inside.look import Look, OtherRowError, inside
from cutaway.inside.pushes import Pushes
from cutaway.inside.without import Without, without
from cutaway.inside.written import written

__all__ = [
    "EndPushes", "Lens", "Look", "Nearest", "OtherRowError", "Pushes", "Without", "end_pushes",
    "inside", "nearest", "without", "written",
]  # fmt: skip
