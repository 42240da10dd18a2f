"""The trace: a run on record, that can be read, replayed, forked and compared.

Knows the file's form and what follows from the file alone. Refuses to know how the engine
works: it observes ``TokenStep``s. What runs a model again is in ``cutaway.rerun``.
"""

from cutaway.sampling import Candidate
from cutaway.trace.read import Trace
from cutaway.trace.record import End, Head, Parent, StageRecord, Step, Token
from cutaway.trace.write import TraceWriter

__all__ = [
    "Candidate",
    "End",
    "Head",
    "Parent",
    "StageRecord",
    "Step",
    "Token",
    "Trace",
    "TraceWriter",
]
