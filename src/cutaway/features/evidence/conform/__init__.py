"""Conformance: which of a server's answers that should be equal are, over HTTP alone."""

from cutaway.features.evidence.conform.answers import Client, ServerAnswer
from cutaway.features.evidence.conform.checks import CHECKS, Case, Pair
from cutaway.features.evidence.conform.conformance import PROMPT, Conformance, conform

__all__ = [
    "CHECKS", "PROMPT", "Case", "Client", "Conformance", "Pair", "ServerAnswer", "conform",
]  # fmt: skip
