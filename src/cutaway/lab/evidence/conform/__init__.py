"""Conformance: which of a server's answers that should be equal are, over HTTP alone."""

from cutaway.lab.evidence.conform.answers import Client, ServerAnswer
from cutaway.lab.evidence.conform.checks import CHECKS, Case, Pair
from cutaway.lab.evidence.conform.conformance import Conformance, conform

__all__ = ["CHECKS", "Case", "Client", "Conformance", "Pair", "ServerAnswer", "conform"]
