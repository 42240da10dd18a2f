"""Probabilities by definition, from the full logits of a text."""

import numpy as np


def probabilities(llm, ids):
    """Return the probabilities of the token after each of these ids: float64 (ids, vocab)."""
    wide = llm.logits(ids).astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
