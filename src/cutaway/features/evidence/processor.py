"""A logits processor that makes transformers draw by cutaway's luck.

Knows that transformers calls a processor with the ids so far and the next scores, as torch tensors.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cutaway.sampling.luck import gumbel

if TYPE_CHECKING:
    import torch


class SeededLuck:
    """Adds each token's noise to its score, so that the luck's token has the largest sum.

    seeds: one for all texts of a batch, or one for each. Use it as the last processor, after
    temperature and truncation, with ``do_sample=False``. A position counts from the first id of a
    row, so all prompts of a batch must have one length.
    """

    def __init__(self, seeds: int | Sequence[int]) -> None:
        self.seeds = seeds

    def __call__(self, input_ids: "torch.Tensor", scores: "torch.Tensor") -> "torch.Tensor":
        """Return float64 (texts, vocab) for ids (texts, length) and scores (texts, vocab)."""
        texts, vocab = scores.shape
        seeds = [self.seeds] * texts if isinstance(self.seeds, int) else self.seeds
        ids, position = np.arange(vocab), input_ids.shape[1]
        noise = np.stack([gumbel(seed, position, ids) for seed in seeds])
        wide = scores.double()
        return wide + wide.new_tensor(noise)
