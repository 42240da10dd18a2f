"""Texts that are finished even if replicas end, and their parts that must be equal."""

from cutaway.errors import CutawayError

PROMPT = "Once upon a time there was a tiny model that said anything at all"
LONG = {"max_tokens": 40, "seed": 3, "ignore_eos": True}


def strip_times(generation):
    """Return the parts of a text that depend neither on time nor on drafts."""
    started, ended = generation.started, generation.ended
    return {
        "seed": generation.seed,
        "steps": [step._replace(id=0, source="", phases=None) for step in generation.steps],
        "passes": [each_pass._replace(id=0, phases=None) for each_pass in generation.passes],
        "prompt": generation.prompt_scores,
        "chain": started and started.chain,
        "end": ended and (ended.reason, ended.matched, ended.fingerprint, ended.held_text),
        "usage": ended and ended.usage._replace(cached_tokens=0),
        "text": generation.completion().text,
    }


async def write(front, options):
    """Return the texts of a request, or the sentence of its error."""
    try:
        texts = await front.submit([PROMPT], front.parse(options))
        await texts.finish()
    except CutawayError as error:
        return str(error)
    return [strip_times(text) for text in texts.generations]
