"""What an oracle finds, and its evidence: names, sentences, figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Name = Literal["temperature", "truncation", "order", "template", "token", "quantisation", "other"]

SENTENCES: Mapping[str, str] = {
    "same": "the same model and settings",
    "temperature": "another temperature",
    "truncation": "another truncation",
    "order": "another order of the chain",
    "template": "another template, or another beginning of the prompt",
    "token": "a changed token",
    "quantisation": "another quantisation of the weights",
    "other": "another model, or a prompt that was not told",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was said to be.

    name      a key of SENTENCES
    what      what it is instead, in words
    evidence  figures that show it, by name; nats where they are log-probabilities
    """

    name: Name
    what: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{SENTENCES[self.name]}: {self.what}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"name": self.name, "what": self.what, "evidence": dict(self.evidence)}
