"""Speed beside the machine's limit: what it can read and multiply, and what decoding makes of it.

Knows stop-watches, counts of bytes, and the machine's own rates. Refuses to know terminals.
"""

from cutaway.bench.limits import Costs, costs_of
from cutaway.bench.report import Settings, benchmark

__all__ = ["Costs", "Settings", "benchmark", "costs_of"]
