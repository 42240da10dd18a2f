"""What each figure of a step means: one sentence for every name under which a figure is shown.

The page and the terminal read the same table. A name is the word beside the figure.
"""

from types import MappingProxyType

GLOSSES = MappingProxyType({
    # The text.
    "context": "tokens before this one, the prompt included: all that the model knows of the text",
    "last token": "the token at the end of the text so far; the model continues from it",
    "position": "index of the token in the text, counted from 0, the prompt included",
    "KV cache": (
        "memory for the keys and values of earlier tokens, kept so that attention can read them "
        "without computing them again"
    ),
    # The model.
    "token id": "number of the token in the vocabulary, and of its row in the embedding matrix",
    "width": "numbers that represent one token inside the model (the residual stream)",
    "layers": "each adds the results of its attention and its MLP to the residual stream",
    "heads": "in each layer; every head reads the earlier tokens with weights of its own",
    "KV heads": "heads of keys and values; several attention heads share one",
    "MLP": "width of the inner layer of the feed-forward network, which works on one token alone",
    "experts": "MLPs in each layer, and how many of them compute a token",
    "attention": "the tokens that a token can read",
    "settled": (
        "the first layer from which on the logit lens, the head applied after each layer, has "
        "this token as the likeliest"
    ),
    "vocabulary": "tokens that the model knows; each gets one score, its logit, in every step",
    "logit": "the model's score of a token; the softmax of all logits gives the probabilities",
    "likeliest": "the token with the highest logit, and its probability before the sampling chain",
    "entropy": (
        "uncertainty of the model's prediction in bits: 0 is certain, each bit more doubles the "
        "number of equally likely choices"
    ),
    # The sampler.
    "left": "tokens that can still be drawn after this stage of the sampling chain",
    "removed": "probability of the tokens that this stage of the sampling chain removed",
    "delta": "what bias and penalties added to the logit",
    "luck": (
        "random number of this token (Gumbel noise); seed, position and token determine it, so "
        "the same seed gives the same text"
    ),
    "score": "log of the probability after the chain, plus luck; the highest score is drawn",
    "runner-up": "the token with the second-highest score",
    "lead": "the highest score minus the second-highest",
    # The token.
    "probability": "of the token, in the model's own prediction, before the sampling chain",
    "after the chain": "probability of the token after the sampling chain, among those left",
    "surprise": "−log2 of the probability, in bits: 1 bit is one half, 10 bits about 1 in 1000",
    "rank": "place of the token among all tokens by logit; 1 is the likeliest",
    "drawn": "the token with the highest score",
    "greedy": "temperature 0: the likeliest token is taken, without luck",
    "forced": "the token was given in advance, not drawn",
    "grammar": "the only token that the grammar allowed here",
    "thinking budget": "a token of the mark that ends the thought, whose budget was spent",
    "draft": "drawn as usual; a faster model or an earlier passage had proposed the same token",
    "end": "probability of the end token, before the sampling chain",
    # The computation.
    "schedule": "milliseconds in which the engine chose the rows to compute",
    "run": "milliseconds in which the model computed the logits",
    "draft model": "milliseconds in which the draft model proposed tokens",
    "sample": "milliseconds in which the sampling chain and the draw ran",
    "row hash": "hash of all logits of this step; a replay must have the same one",
    "fingerprint": "hash of all logits up to this step; equal texts on other machines have it too",
    # A canvas.
    "canvas": "positions that are filled in any order; a cell is one of them",
    "masked": "cells that have no token yet",
    "pass": "one run of the model over the canvas, which reveals one cell or several",
    "revealed": "cells to which this pass gave a token",
    "rows": "positions that the model computed in this pass",
    "bound": (
        "the most that revealing several cells in one pass, rather than one by one, can lose on "
        "average; in bits"
    ),
})  # fmt: skip
