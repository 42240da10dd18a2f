"""A revised draft, and the log-probability of each of its tokens."""

import numpy as np

DRAFT = "ab ba abab a"


def logprobs(llm, ids, first):
    """Return the log-probability of each token from ``first`` on, by logits of the whole text."""
    rows = llm.logits(ids)[first - 1 : -1].astype(np.float64)
    tops = rows.max(axis=1)
    totals = tops + np.log(np.exp(rows - tops[:, None]).sum(axis=1))
    return [float(row[v]) - z for row, v, z in zip(rows, ids[first:], totals, strict=True)]


def revise(llm, rule="gibbs", draft=DRAFT, prompt="ba", **more):
    options = {"seed": 3, "share": 0.5, "candidates": 20, "power": 1.5, **more}
    return llm.revise(prompt, draft, rule=rule, **options)
