"""Compare: one prompt continued in every way, with the same luck, in one table.

A causal model writes from left to right; a bidirectional model reveals a canvas, by any of the
rules. A judge, which is a causal model, scores all texts with its own tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.progress import Progress, silent
from cutaway.engine import Denoise, Pass
from cutaway.engine.canvas import Rule, rule_of_text
from cutaway.errors import InputError
from cutaway.requests.base import usual_rule
from cutaway.requests.completion import Completion
from cutaway.rerun.price import price
from cutaway.rerun.request import UNSTOPPED
from cutaway.rerun.statistics import surprise
from cutaway.trace.canvas import kendall

LOOP = "left to right"


@dataclass(frozen=True, slots=True)
class ComparedText:
    """A text, and its cost.

    way         ``LOOP``, or the rule by which a canvas was revealed
    passes      how many passes the model made; each pass wrote one token or more
    rows        how many rows these passes computed
    ms          how many milliseconds this one run took
    bits        the judge's surprise at the text after the prompt; None without a judge
    text_bytes  the bytes of the text in UTF-8
    distinct    the share of different words, and of different pairs of words; None if the text has
                no words or no pairs
    order       Kendall's tau-b between the passes that revealed the tokens and their positions: 1
                means from left to right; None if one pass revealed all tokens
    price       bits lost by revealing tokens together; see ``price``; None for canvases of noise
    """

    model: str
    way: str
    text: str
    token_ids: tuple[int, ...]
    passes: int
    rows: int
    ms: float
    distinct: tuple[float | None, float | None]
    order: float | None
    price: float | None
    bits: float | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass, on average."""
        return len(self.token_ids) / self.passes

    @property
    def text_bytes(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte, comparable between tokenizers and lengths; None without a judge."""
        return None if self.bits is None or not self.text else self.bits / self.text_bytes

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        more = ("tokens_per_pass", "text_bytes", "bits_per_byte")
        return asdict(self) | {name: getattr(self, name) for name in more}


@dataclass(frozen=True, slots=True)
class Compared:
    """The texts of a prompt and a seed. judge: the name of the model that read them, or None."""

    prompt: str
    seed: int
    judge: str | None
    ways: tuple[ComparedText, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"ways": [way.to_dict() for way in self.ways]} | {
            name: getattr(self, name) for name in ("prompt", "seed", "judge")
        }


def compare(
    llms: Sequence[LLM],
    prompt: str,
    *,
    rules: Sequence[str] | None = None,
    judge: LLM | None = None,
    max_tokens: int = 64,
    progress: Progress = silent,
    **options: Any,
) -> Compared:
    """Continue the prompt in every way that the models have.

    rules       for models that are not causal, as ``rule_of_text`` reads them; None: those of
                ``usual_rules``
    judge       scores the texts; None: the first causal model, if there is one
    max_tokens  the tokens of each text; no stop condition ends a text
    progress    called with ("writing" or "judging", tokens done, tokens in all)
    options     of LLM.generate for all texts, such as temperature and seed

    Each model first generates one token, so that ms includes no warm-up. Raises InputError for a
    value out of range, and for a rule that a model cannot follow.
    """
    if not llms:
        raise InputError("compare needs a model: name one or more")
    if own_options := [
        name for name in ("denoise", "interventions", "n", "trace") if name in options
    ]:
        raise InputError(
            own_options[0], ": every way has one text, as its rule has it: leave it out"
        )
    judge = _judge_of(llms, judge, prompt)
    options |= {"max_tokens": check_int("max_tokens", max_tokens, 1), **UNSTOPPED}
    planned = [(llm, way) for llm in llms for way in _ways(llm, rules, max_tokens)]
    for llm in llms:
        first = None if llm.config.is_causal else True  # the model's own rule
        _run(llm, prompt, options | {"denoise": first, "max_tokens": 1})
    ways: list[ComparedText] = []

    def report_tokens(tokens: int) -> None:
        progress("writing", len(ways) * max_tokens + tokens, len(planned) * max_tokens)

    for llm, (name, rule) in planned:
        way_options = options | {"denoise": rule}
        way, options["seed"] = _write_way(llm, prompt, name, way_options, report_tokens)
        ways.append(way)
    for number, way in enumerate(ways if judge else ()):
        assert judge is not None
        ways[number] = replace(way, bits=_bits(judge, prompt, way.text))
        progress("judging", (number + 1) * max_tokens, len(ways) * max_tokens)
    return Compared(prompt, options["seed"], judge.name if judge else None, tuple(ways))


def _judge_of(llms: Sequence[LLM], judge: LLM | None, prompt: str) -> LLM | None:
    judge = judge or next((llm for llm in llms if llm.config.is_causal), None)
    if judge and not judge.config.is_causal:
        raise InputError("judge", f": {judge.name} is bidirectional: name a causal model")
    if judge and not judge.tokenize(prompt):
        raise InputError("prompt", " is empty and the judge has no begin token: write something")
    return judge


def usual_rules(llm: LLM, cells: int) -> tuple[str, ...]:
    """The rules of a model that is not causal: one cell a pass, and published rules.

    An encoder, which was not trained to write, has fewer rules.
    """
    if usual := usual_rule(llm.config):
        return (usual["rule"],)
    if llm.tokenizer.sep_id is not None:
        return ("confidence", f"mask-predict,steps={min(cells, 10)}")
    return ("confidence", f"confidence,steps={-(-cells // 2)}", "threshold", "entropy-bound")


def _ways(llm: LLM, rules: Sequence[str] | None, cells: int) -> list[tuple[str, Rule | None]]:
    if llm.config.is_causal:
        return [(LOOP, None)]
    rule_names = usual_rules(llm, cells) if rules is None else rules
    if not rule_names:
        raise InputError("rules", " must name at least one: leave it out for the usual ones")
    usual = usual_rule(llm.config)
    return [(name, rule_of_text(name, usual)) for name in rule_names]


def _run(
    llm: LLM, prompt: str, options: Mapping[str, Any], report_tokens: Callable[[int], object] = int
) -> tuple[Completion, tuple[int, ...]]:
    """Write a text; return the text, and the tokens that follow its canvas.

    report_tokens: called with the number of tokens written so far
    """
    tokens = 0
    with llm.stream(prompt, **options) as stream:
        for event in stream.events():
            if isinstance(event, Pass):
                tokens += len(event.revealed) - len(event.masked_again)
            else:  # the tokens of a canvas were counted in their pass
                tokens += options["denoise"] is None
            report_tokens(tokens)
        decoder = stream.request.decoder
        return stream.completion(), decoder.suffix_ids if isinstance(decoder, Denoise) else ()


def _write_way(
    llm: LLM,
    prompt: str,
    name: str,
    options: Mapping[str, Any],
    report_tokens: Callable[[int], object],
) -> tuple[ComparedText, int]:
    """Write a text in one way; return the text, which is not yet judged, and its seed."""
    started = perf_counter()
    done, suffix_ids = _run(llm, prompt, options, report_tokens)
    ms, passes = 1e3 * (perf_counter() - started), done.passes
    if rule := options["denoise"]:
        figures = len(passes), sum(run_pass.rows for run_pass in passes)
        bits_lost = None  # of noise, or of likeliest tokens in the place of drawn ones
        if rule.start == "mask" and rule.remask != "unchosen":
            bits_lost = price(llm, done.prompt_token_ids, passes, suffix_ids=suffix_ids).price
        came = [step.pass_index or 0 for step in done.steps]
    else:
        steps, usage = len(done.steps), done.usage
        figures = steps, usage.prompt_tokens - usage.cached_tokens + steps - 1
        bits_lost, came = 0.0, [*range(steps)]
    return ComparedText(
        llm.name, name, done.text, done.token_ids, *figures, ms,
        (_distinct(done.text, 1), _distinct(done.text, 2)), kendall(came), bits_lost,
    ), done.seed  # fmt: skip


def _bits(judge: LLM, prompt: str, text: str) -> float:
    """Compute the judge's surprise at the text after the prompt."""
    before, after = judge.tokenize(prompt), judge.tokenizer.encode(text, goes_on=True)
    if not after:
        return 0.0
    length = len(before)
    rows = judge.logits([*before, *after], start=length - 1, prompt_tokens=length)[:-1]
    return float(surprise(rows, after).sum())


def _distinct(text: str, n: int) -> float | None:
    """Return distinct-n (Li et al. 2016, arXiv 1510.03055) of the words of a text.

    White space separates the words. None if the text has fewer than n words.
    """
    words = text.split()
    runs = [*zip(*(words[i:] for i in range(n)), strict=False)]
    return len({*runs}) / len(runs) if runs else None
