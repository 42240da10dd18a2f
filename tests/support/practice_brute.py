"""The sampler written as on paper: the oracle of the exercises."""

from math import exp, log2

from cutaway.features.practice.start import Start

QUICK = ("softmax", "entropy", "greedy", "sampling", "top-k", "top-p", "temperature")


def softmax(logits, survivors):
    weights = {row: exp(logits[row]) for row in survivors}
    return {row: weight / sum(weights.values()) for row, weight in weights.items()}


def rank(start):
    return sorted(
        range(len(start.names)), key=lambda row: (-start.logits[row], start.token_ids[row])
    )


def shares(start, temperature=1.0, top_k=0, top_p=1.0):
    """Return row -> probability of the surviving tokens."""
    logits = [z / temperature for z in start.logits]
    order, survivors = rank(start), []
    whole = softmax(logits, order)
    for row in order[: top_k or None]:
        survivors.append(row)
        if sum(whole[r] for r in survivors) >= top_p:
            break
    return softmax(logits, survivors)


def pick(start, temperature=1.0, **filters):
    """Return the row that is drawn."""
    if temperature == 0:
        return rank(start)[0]
    survivors = shares(start, temperature, **filters)
    return max(survivors, key=lambda row: start.logits[row] / temperature + start.luck[row])


def entropy(start):
    """Return the entropy in bits."""
    return -sum(p * log2(p) for p in shares(start).values())


def solutions(start):
    """Return the right answers to the exercises of the QUICK topics."""
    rows, name = range(len(start.names)), start.names.__getitem__
    all_of, best = shares(start), rank(start)[0]
    return [
        [all_of[row] for row in rows],
        [entropy(start)],
        name(pick(start, 0)),
        name(pick(start)),
        list(shares(start, top_k=2).values()),
        name(pick(start, top_k=2)),
        name(list(shares(start, top_p=0.9))[-1]),
        name(pick(start, top_p=0.9)),
        [shares(start, 0.5)[best]],
        name(pick(start, 0.5)),
        name(pick(start, 2.0)),
    ]


def start_of(logits, seed=35, position=5):
    """Return a start whose token ids are far apart and unordered."""
    ids = [(7919 * (n + 1)) % 501 for n in range(len(logits))]
    return Start("x", tuple(ids), tuple(f"t{i}" for i in ids), tuple(logits), seed, position)
