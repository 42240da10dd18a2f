"""Logits as shares of one."""

import numpy as np


def softmax(logits):
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return shares / shares.sum()
