"""Lessons on the rows that a step computes: how many, what each may read, when they are read."""

from cutaway.features.inside.look import Floats, inside
from cutaway.features.lessons import drawings, figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.drawings import Curve, MaskRow
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    own_chance,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.trace import ShownRun, Trace

SEA = "The lighthouse keeper wrote in his diary every evening. Tonight he"


def cache(desk: Desk) -> Lesson:
    """The same text with and without the KV cache; the rows that each step computes."""
    settings = {"seed": 3, "temperature": 0.8, "top_p": 0.95, "max_tokens": 64}
    cached, naive = (
        desk.write(desk.smollm2.generate, SEA, kv_cache=keeps, **settings)
        for keeps in (True, False)
    )
    assert cached.output_token_ids == naive.output_token_ids
    assert cached.end is not None
    assert naive.end is not None
    assert cached.end.fingerprint == naive.end.fingerprint
    prompt, steps = len(cached.head.prompt_token_ids), len(cached.steps)
    with_cache = [prompt, *[1] * (steps - 1)]
    without = [step.position for step in naive.steps]
    totals = sum(with_cache), sum(without)
    assert totals[0] == cached.steps[-1].position
    last = steps - 1
    kilobytes = cached.head.kv_bytes_per_token / 1000
    weights, attended = _costs(cached)
    return Lesson(
        "cache",
        "A cache, or everything again",
        "To write the next token, a transformer reads all tokens before it. Must it compute them "
        "all again at every step?",
        [
            point(f"The first step computes the {prompt} tokens of the prompt: there is no way "
                  "around it. From each it keeps keys and values, which is all that a later token "
                  "reads of it: the KV cache.", 0),
            point("With the cache, every later step computes one token: the last one. The last "
                  f"step comes after {cached.steps[last].position} tokens, and computes 1.", last),
            point("Without it, a step begins with the first word again. The last step computes "
                  f"{without[-1]} tokens; all steps together {totals[1]:,} in place of "
                  f"{totals[0]}.", last, run=2),
            point("Nothing is lost: both runs have the same tokens, and the same fingerprint of "
                  f"all logits, {cached.end.fingerprint}.", last, run=2, other=1, panel="tree"),
            point(f"The price is memory: {kilobytes:.0f} kB for every token. And a step does not "
                  "become free: the new token still reads every key. In this model that takes "
                  f"{attended / weights:.2%} of a token's multiplications for each token before "
                  f"it, {1000 * attended / weights:.0%} after a thousand.", last),
        ],
        "No. Keys and values of earlier tokens never change, so they are kept. A step then costs "
        "one token, and a little more for each token before it: all steps together grow a little "
        "faster than the text, and without the cache with its square.",
        [show_run(cached, "with the cache"), show_run(naive, "without it")],
        figures.bars([
            (f"{sum(sizes)} tokens", [("", size / without[-1], name == "with")
                                      for size in sizes[::4]])
            for name, sizes in (("without", without), ("with", with_cache))
        ]),
        f"Tokens computed in each step: {totals[1]:,} without the cache, {totals[0]} with it.",
        _rows_chart(with_cache, without),
    )  # fmt: skip


def _rows_chart(with_cache: list[int], without: list[int]) -> str:
    """Draw the tokens that each step computes."""
    curves = [
        Curve(f"without: {without[-1]} tokens", without),
        Curve("with the cache: 1 token", with_cache, hot=True),
    ]
    caption = (
        f"Tokens that each step computes. With the cache {sum(with_cache)} in all, without it "
        f"{sum(without):,}, for the same {len(without)} tokens of text."
    )
    chart = drawings.chart(curves, "step", "tokens computed in the step")
    return drawings.figure(chart, caption)


def _costs(trace: Trace) -> tuple[int, int]:
    """Return a token's multiplications: with the weights, and for each token that it attends to."""
    sizes = trace.head.sizes
    assert sizes is not None
    width = sizes.hidden  # of all heads of queries together
    keys = width * sizes.kv_heads // sizes.heads
    layer = width * (2 * width + 2 * keys + 3 * sizes.mlp)
    return sizes.layers * layer + width * trace.head.vocab_size, sizes.layers * 2 * width


CAT, DOOR = "The old cat sat down by the warm fire", " door"


def causal_mask(desk: Desk) -> Lesson:
    """A token that is changed at the end changes no row before it."""
    llm = desk.smollm2
    ids = llm.tokenize(CAT)
    (other,) = llm.tokenize(DOOR)
    texts = [
        desk.write(
            llm.generate, ids[:1], forced=(*ids[1:-1], last), max_tokens=len(ids) + 1,
            temperature=0, seed=1,
        )
        for last in (ids[-1], other)
    ]  # fmt: skip
    fire, door = texts
    end = len(ids) - 1  # the step that reads the last token
    hashes = [[f"{step.logits_hash:016x}" for step in text.steps] for text in texts]
    same = [a == b for a, b in zip(*hashes, strict=True)]
    assert same[: end + 1] == [True] * end + [False]
    weights = [inside(llm, fire, step).weights for step in range(end + 1)]
    layer, head = _furthest_head(weights[-1])
    names = [fire.name_of(token_id) for token_id in ids]
    rows = [
        MaskRow(name, weights[k][layer, head].tolist(), hashes[0][k], hashes[1][k], not same[k])
        for k, name in enumerate(names)
    ]
    rows[-1] = rows[-1]._replace(token=f"{names[-1]} / {DOOR.strip()}")
    triangle = drawings.triangle(rows, ("row hash", f"with{DOOR}"))
    return _mask_lesson(
        (fire, door), end, triangle, (layer, head), show_run(fire, "fire", llm, (4,))
    )


def _furthest_head(weights: Floats) -> tuple[int, int]:
    """Return the layer and the head that read the most from all tokens but the first."""
    best = int(weights[:, :, 1:].sum(axis=2).argmax())
    heads = int(weights.shape[1])
    return best // heads, best % heads


def _mask_lesson(
    texts: tuple[Trace, Trace], end: int, triangle: str, head: tuple[int, int], run: ShownRun
) -> Lesson:
    fire, door = texts
    row = f"{fire.steps[end - 1].logits_hash:016x}"
    assert fire.steps[end - 1].fingerprint == door.steps[end - 1].fingerprint
    following = token_at(fire, end)
    assert token_at(door, end) == following
    middle = min(run.looks)
    words = [text.name_of(text.steps[end - 1].token_id).strip() for text in texts]
    caption = (
        "Each row is a token, each column a token that it may read; colour: how much head "
        f"{head[1]} of layer {head[0]} reads of it. The future, on the right, is closed. Only the "
        "last row's hash changes with the last word."
    )
    return Lesson(
        "causal-mask",
        "The causal mask",
        "A transformer computes all tokens of a text at the same time. How can a word in the "
        "middle not know what comes after it?",
        [
            point("In the triangle a row is a token. It reads itself and the tokens before it; "
                  "what is after it is closed, in every layer. This step reads "
                  f"{middle + 1} tokens.", middle, panel="inside", inside={"head": head}),
            point(f"In the second run the last word is “{words[1]}” in place of "
                  f"“{words[0]}”. What the model computed of the word before it is the "
                  f"same to the bit: its hash is {row} here …", end - 1),
            point(f"… and {row} there. All {end} rows before the changed word have their hashes.",
                  end - 1, run=2),
            point("The row of the changed word itself is another, so what follows has another "
                  f"probability: {quote(following)} {own_chance(fire.steps[end])} after "
                  f"“{words[0]}”, {own_chance(door.steps[end])} after “{words[1]}”.",
                  end, run=2),
            point("This is why one pass can learn from every word of a text at once: none sees "
                  "the answer. And why keys and values can be kept: a later word never changes "
                  "them.", end),
        ],
        "The mask: each row may read only what is on its left. So a word that is added or changed "
        "at the end changes nothing before it, which training and the KV cache both rest on.",
        [run, show_run(door, words[1])],
        triangle,
        f"A triangle of {end + 1} tokens: the future is closed.",
        drawings.figure(triangle, caption),
    )  # fmt: skip


TEA = "A small child asks why tea gets cold when it stands in the kitchen. The answer is simple:"


def streaming(desk: Desk) -> Lesson:
    """The prompt is one pass, and each token another: the first word can be read after one."""
    text = desk.write(desk.smollm2.generate, TEA, seed=1, temperature=0.7, top_p=0.9, max_tokens=40)
    steps = len(text.steps)
    prompt = len(text.head.prompt_token_ids)
    sizes = [prompt] + [1] * (steps - 1)
    assert sum(sizes) == text.steps[-1].position
    drawing = drawings.passes([("streamed", sizes, 1), ("all at once", sizes, steps)])
    caption = (
        f"The passes in order, from left to right, each as wide as it has tokens: {prompt} of the "
        "prompt, then one for each token. Orange: how long the reader sees nothing."
    )
    first = token_at(text, 0)
    last = text.steps[-1]
    return Lesson(
        "streaming",
        "Why answers come word by word",
        "A model could show its answer when it is done. Why do chats show it while it is written, "
        "and why does the first word take longest?",
        [
            point(f"The first pass reads the whole prompt, {prompt} tokens at once, and its last "
                  f"row predicts {quote(first)}. This is the wait before the first word.", 0),
            point(f"The second pass can begin only when {quote(first)} is drawn, since it reads "
                  f"it. It computes one token: {quote(token_at(text, 1))}.", 1),
            point(f"So it goes on: {steps} tokens take {steps} passes, one after the other. No "
                  f"later pass can be had earlier: {quote(token_at(text, steps // 2))} needs all "
                  f"{steps // 2} tokens before it.", steps // 2),
            point("Streamed, the reader begins after 1 pass; otherwise after "
                  f"{steps}, at {quote(token_at(text, last.index))}. The work is the same.",
                  last.index),
            point("A word that was sent cannot be taken back: each is final when it is drawn. "
                  "This is why a stop string or a tool call is held back until it is certain.",
                  last.index, panel="why"),
        ],
        "Because tokens are made one after the other, and each is final: to show them as they come "
        "costs nothing. The first takes longest since the whole prompt is read before it.",
        [show_run(text, "the answer")],
        figures.strips(("after 1 pass", [*tokens(text, 0, 1)]), (f"after {steps // 2} passes",
                       tokens(text, steps // 2 - 1, steps // 2))),
        "The text after one pass, and after half of its passes.",
        drawings.figure(drawing, caption),
    )  # fmt: skip
