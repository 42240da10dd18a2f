"""Forks of a recorded run: another token, or an intervention, at one step, and its consequences.

``branch`` continues a run from such a step. ``diff_models`` measures the cost of a mistake, and how
long its effect lasts. Curves are by distance from the mistake; docs/experiments.md defines them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int, current_names
from cutaway.compute.backends import Logits
from cutaway.engine.canvas import ForcedCell, Rule
from cutaway.errors import InputError, Name
from cutaway.requests.completion import Completion
from cutaway.requests.sync_llm import Stream
from cutaway.rerun.request import bound, check_from_left, check_vocabulary, prompt_of, settings_of
from cutaway.rerun.statistics import Curve, divergence, surprise
from cutaway.trace import Parent, Trace
from cutaway.trace.canvas import passes_over
from cutaway.trace.differences import SHORTEST_RUN, common_prefix
from cutaway.trace.write import check_path

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions, Intervention


# -- branches ----------------------------------------------------------------------------------

Luck = Literal["same", "fresh"]


_MAX_NAMED = 16  # the most tokens that an error names, for a text of several


def token_of(llm: LLM, text: str, field: str = "token") -> int:
    """Return the token that adds exactly this text; else an InputError lists the text's tokens."""
    data, tokenizer = text.encode(), llm.tokenizer
    if tokenizer.min_tokens(text) > _MAX_NAMED:  # which would take long to read, and to name
        raise InputError(field, f": {len(text)} characters are not one token: give one")
    ids = tokenizer.encode(text, add_bos=False)
    if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == data:
        return ids[0]
    # SentencePiece puts a space before a text, and has tokens of single bytes before the others.
    exact = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == data]
    if exact and data:
        return exact[-1]
    names = ", ".join(f"{i} {tokenizer.token_name(i)!r}" for i in ids) or "none"
    raise InputError(
        field, f": {text!r} is not one token but {len(ids)} ({names}): give one of them"
    )


def token_id_of(llm: LLM, token: str | int, field: str) -> int:
    """Return the id of a token that is given by text or id; InputError names the field."""
    token_id = token_of(llm, token, field) if isinstance(token, str) else token
    return check_int(field, token_id, 0, llm.tokenizer.vocab_size - 1)


def branch(
    llm: LLM, recorded: Trace, at: int, token: str | int | None = None, **options: Any
) -> Completion:
    """Read a stream of ``open_branch`` to its end."""
    return open_branch(llm, recorded, at, token, **current_names(options)).finish()


def open_branch(
    llm: LLM,
    recorded: Trace,
    at: int,
    token: str | int | None = None,
    *,
    passed: int | None = None,
    interventions: "Iterable[Intervention | str]" = (),
    luck: Luck = "same",
    seed: int | None = None,
    max_tokens: int | None = None,
    trace: str | PathLike[str] | None = None,
    **more: Any,
) -> Stream:
    """Generate the text again with another token at step ``at``, and continue from there.

    token       the token's text, or its id; None, with interventions: the token is drawn
    interventions  in addition to the recorded ones, from this step on unless they name a step
    passed      on a canvas ``at`` is a cell, and this is the pass in which the cell gets the token;
                None: the pass in which it got the recorded token
    luck        "same": the recorded seed, so that each position keeps its luck (Gumbel noise);
                "fresh": ``seed``, or one that is picked and reported
    max_tokens  limit of the whole answer, including the part before the fork; None: as recorded
    trace       file for the fork's trace, whose parent is the recorded one
    more        options of LLM.stream that change no token, such as speculate and candidates

    The tokens before the fork are forced and computed again, since the fingerprint covers every
    step's logits. Raises InputError for a step or a token that does not exist, or if the model has
    another vocabulary. Reading the stream raises InputError if the grammar forbids the token.
    """
    head = recorded.head
    check_vocabulary(llm, recorded)
    at = _step_of(recorded, at)
    token = None if token is None else token_id_of(llm, token, "token")
    interventions = _from_step(interventions, at)
    if token is None and not interventions:
        raise InputError("a branch needs a token, or interventions: name one")
    changes = {"interventions": interventions, "luck fresh": luck == "fresh"}
    changes |= {"max_tokens": max_tokens}
    options = settings_of(head) | _seed(luck, seed) | more
    options |= _fork_options(recorded, at, token, passed, changes)
    if max_tokens is not None:
        past = Name("max_tokens", prose=": past the fork it")
        options["max_tokens"] = check_int(past, max_tokens, at + 1)
    if trace is not None:
        check_path(trace)
        options = {"candidates": head.candidates, "track": head.tracked_ids} | options
    stream = llm.stream(prompt_of(llm, head), **options)
    if trace is not None:
        stream.record(trace, prompt=head.prompt, parent=Parent(recorded.sha256, at, token))
    return stream


def _step_of(recorded: Trace, at: int) -> int:
    if not recorded.steps:
        raise InputError("the trace has no steps: there is nowhere to branch")
    return check_int("at", at, 0, len(recorded.steps) - 1)


def _fork_options(
    recorded: Trace, at: int, token: int | None, pass_index: int | None, changes: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Return the options that repeat a run up to the fork, and change it there.

    changes: all changes but the token; a canvas supports none of these
    """
    if recorded.head.decoder:
        return {"denoise": _forced_cell(recorded, at, token, pass_index, changes)}
    if pass_index is not None:
        raise InputError("passed", ": this text was written from left to right, in no passes")
    forced_token = () if token is None else (token,)
    return {
        "interventions": (*recorded.head.interventions, *changes["interventions"]),
        "forced": (*recorded.output_token_ids[:at], *forced_token),
    }


def _forced_cell(
    recorded: Trace,
    at: int,
    token: int | None,
    pass_index: int | None,
    changes: Mapping[str, Any],
) -> Rule:
    """Return the canvas's rule with one more forced cell; earlier passes do not change."""
    decoder = recorded.head.decoder
    assert decoder is not None
    for name, value in changes.items():
        if value:
            raise InputError(name, ": it would change passes before the fork: give a token alone")
    assert token is not None  # since there are no interventions
    if pass_index is None:
        pass_index = recorded.steps[at].pass_index
    assert pass_index is not None  # since a canvas's steps have passes
    possible = [*passes_over(recorded, at)]
    if pass_index not in possible:
        raise InputError(
            "passed",
            f" must be one of those that revealed the cell's block, {possible[0]} to "
            f"{possible[-1]}, not {pass_index}",
        )
    forced_cells = [
        cell
        for cell in decoder.rule.forced_cells
        if (cell.pass_index, cell.cell) != (pass_index, at)
    ]
    return replace(decoder.rule, forced_cells=(*forced_cells, ForcedCell(pass_index, at, token)))


def _from_step(
    interventions: "Iterable[Intervention | str]", at: int
) -> "tuple[Intervention, ...]":
    if not interventions:
        return ()
    from cutaway.engine.interventions import check_interventions

    parsed = check_interventions(interventions)
    return tuple(
        intervention if intervention.from_step is not None else replace(intervention, from_step=at)
        for intervention in parsed
    )


def _seed(luck: Luck, seed: int | None) -> dict[str, Any]:
    if luck not in ("same", "fresh"):
        raise InputError("luck", f' must be "same" or "fresh", not {luck!r}')
    if luck == "same" and seed is not None:
        raise InputError(
            "seed", " is for fresh luck: the same luck has the recorded seed; leave it out"
        )
    return {} if luck == "same" else {"seed": seed}


# -- two texts that differ from one token on ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconvergence:
    """The first run of ``SHORTEST_RUN`` tokens, after the mistake, that is also in the original.

    distance  the distance of the run's first token from the mistake, in the fork
    shift     how many tokens later the run is in the original; 0 at the same position
    """

    distance: int
    shift: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A text with one mistake, compared with the original. Curves are by distance: 1, 2, …

    at, token_id, instead_of  the step, the mistake, and the original's token
    bits       surprise of the mistake; ``instead_bits`` is that of the original's token
    token_ids  the fork's own tokens after the mistake
    forced     KL in bits of the next token's distribution, original ‖ with the mistake, both
               followed by the original's tokens
    cost       by how many bits the original's token is more surprising after the mistake
    free       KL in bits, original ‖ fork, each followed by its own tokens
    """

    at: int
    token_id: int
    instead_of: int
    bits: float
    instead_bits: float
    token_ids: tuple[int, ...]
    forced: Curve
    cost: Curve
    free: Curve
    reconvergence: Reconvergence | None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        values = asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


class Original:
    """A text that forks are compared with.

    logits         logits of its steps, (steps, vocab)
    interventions  interventions in the text and in its forks
    """

    def __init__(
        self,
        llm: LLM,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        interventions: "BoundInterventions | None" = None,
    ) -> None:
        self._llm, self.prompt, self.token_ids = llm, list(prompt), tuple(token_ids)
        self._interventions = interventions
        self.logits = self._logits_after(self.prompt, self.token_ids)

    def fork(self, at: int, token_ids: Sequence[int], horizon: int | None = None) -> Fork:
        """Return the curves after a mistake at step ``at`` of ``token_ids``, a fork's whole answer.

        horizon: how many tokens after the mistake are measured; None: all
        """
        stop = None if horizon is None else at + 1 + horizon
        after, text_before = slice(at + 1, stop), [*self.prompt, *token_ids[: at + 1]]
        original_ids, fork_ids, plain = (
            self.token_ids[after],
            tuple(token_ids[after]),
            self.logits[after],
        )
        forced, free = (
            self._logits_after(text_before, original_ids),
            self._logits_after(text_before, fork_ids),
        )
        shared = min(len(plain), len(free))
        return Fork(
            at=at,
            token_id=token_ids[at],
            instead_of=self.token_ids[at],
            bits=self._bits(at, token_ids[at]),
            instead_bits=self._bits(at, self.token_ids[at]),
            token_ids=fork_ids,
            forced=divergence(plain, forced),
            cost=surprise(forced, original_ids) - surprise(plain, original_ids),
            free=divergence(plain[:shared], free[:shared]),
            reconvergence=reconvergence(fork_ids, original_ids),
        )

    def _bits(self, at: int, token_id: int) -> float:
        return float(surprise(self.logits[at : at + 1], [token_id])[0])

    def _logits_after(self, text_before: list[int], following: Sequence[int]) -> Logits:
        """Return the logits of the tokens that follow, (len(following), vocab)."""
        rows = self._llm.logits(
            [*text_before, *following[:-1]], len(text_before) - 1, self._interventions,
            prompt_tokens=len(self.prompt),
        )  # fmt: skip
        return rows[: len(following)]


def diff_models(llm: LLM, a: Trace, b: Trace) -> Fork | None:
    """Score trace ``b`` as a fork of ``a``, by a model with ``a``'s interventions.

    The first token that differs is the mistake. Returns None if one text begins the other.
    Raises InputError if the prompts differ, or the model has another vocabulary.
    """
    for trace in (a, b):
        check_from_left("what a mistake costs", trace)
    check_vocabulary(llm, a)
    check_vocabulary(llm, b)
    if a.head.prompt_token_ids != b.head.prompt_token_ids:
        raise InputError("the two traces have different prompts: their steps cannot be compared")
    original, fork = a.output_token_ids, b.output_token_ids
    at = common_prefix(original, fork)
    if at == min(len(original), len(fork)):
        return None
    return Original(llm, a.head.prompt_token_ids, original, bound(llm, a.head)).fork(at, fork)


def reconvergence(fork: Sequence[int], original: Sequence[int]) -> Reconvergence | None:
    """Return where two texts meet again after a mistake; None if they share no long enough run."""
    runs: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(original) - SHORTEST_RUN + 1):
        runs.setdefault(tuple(original[i : i + SHORTEST_RUN]), []).append(i)
    for i in range(len(fork) - SHORTEST_RUN + 1):
        if places := runs.get(tuple(fork[i : i + SHORTEST_RUN])):
            return Reconvergence(i + 1, min((j - i for j in places), key=abs))
    return None
