"""Phrases on a trace and on the inside of a step, with places for figures.

The page uses the same phrases.
"""

_PHRASES = {
    # What became of the end token at a step: "the end token was drawn".
    "drawn": "was drawn",
    "forced": "was not in play, since the token was forced",
    "lost": "survived and lost the draw",
    "removed": "was removed by {stage}",
    # One step: how likely the end token was, and what became of it.
    "status": "step {step}: the end token was the {rank} with {share}{changed}{became}",
    "likeliest": "likeliest",
    "nth likeliest": "{nth} likeliest",
    "changed": " (bias and penalties added {delta})",
    "it was drawn": ", and was drawn",
    "drawn and passed": ", and was drawn; the text went on past it",
    "given": "; the token of this step was given, not drawn",
    "given instead": "; another token was given, or it would have been drawn",
    "a stage removed it": "; {stage} removed it",
    "lost the draw": ", and survived the chain with {share}; it lost the draw by {margin}",
    "not the likeliest": (
        ", and survived the chain with {share}; the likeliest is taken, and it was {margin} behind"
    ),
    # Which condition ended the text.
    "unfinished": "The record has no end: the run was cut short, or is still going on.",
    "ended": "It ended because {reason}.",
    "end_token": "the end token {name} was {came}",
    "stop_token": "the stop token {name} was {came}",
    "stop_string": "the text reached the stop string {name}",
    "max_tokens": "it had {tokens}, which is max_tokens",
    "context_full": "the context was full after {tokens}",
    "constraint": "the constraint allows nothing but the end after {tokens}",
    "scored": "its prompt was scored, and nothing was to be written",
    "aborted": "it was aborted after {tokens}",
    "error": "of an error after {tokens}: {error}",
    "one token": "1 token",
    "many tokens": "{count} tokens",
    "reached": "reached",
    # What a constraint did: at one step, and to the whole text.
    "grammar": "the grammar",
    "no grammar": "the constraint",
    "budget": "the thinking budget",
    "wanted": "the model wanted “{wanted}”; {rule} left “{left}”",
    "bent": (
        "The sum of −ln Z, where Z is the probability that {rule} left, is {nats} nats; most of it "
        "at step {step}{at}."
    ),
    "bent nothing": (
        "The sum of −ln Z, where Z is the probability that {rule} left, is 0: it removed nothing."
    ),
    "differed": "At {count} of {steps} steps the model wanted another token.",
    # The inside of a step: how it is proven, and what each figure is not.
    "same row": "recomputed bit for bit: row hash {row}",
    "other row": "row hash {row} is not the recorded one: another arithmetic computed it",
    "logit above": (
        "At step {step} the logit of {token} was {total} above that of {other}: {parts}; {count} "
        "others {rest}. {proof}."
    ),
    "logit below": (
        "At step {step} the logit of {token} was {total} below that of {other}: {parts}; {count} "
        "others {rest}. {proof}."
    ),
    "attention is no effect": (
        "Attention is not effect: a token with much attention may matter nothing, one with little "
        "most."
    ),
    "attribution is no effect": (
        "Attribution is not the effect of an ablation: later layers may erase it, or make up for "
        "what is ablated."
    ),
    "not said": ("Only the last layer feeds the output head: ignore guesses until they settle."),
    "not because": (
        "This is an effect, not a cause: repeated words mask each other, and the text becomes odd."
    ),
    "drawn at": "drawn at step {step}",
    "given at": "given at step {step}",
}


def phrase(name: str, /, **figures: object) -> str:
    """The phrase of this name, with its figures."""
    return _PHRASES[name].format(**figures)


def phrases() -> dict[str, str]:
    """All of them by name, each place for a figure as "{name}"."""
    return dict(_PHRASES)
