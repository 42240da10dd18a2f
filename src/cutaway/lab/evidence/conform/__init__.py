"""Conformance: which of a server's answers that should be equal are, over HTTP alone."""

from cutaway.lab.evidence.conform.answers import Answer, Client
from cutaway.lab.evidence.conform.checks import CHECKS, Case, Pair
from cutaway.lab.evidence.conform.conformance import Conformance, conform

__all__ = ["CHECKS", "Answer", "Case", "Client", "Conformance", "Pair", "conform"]
