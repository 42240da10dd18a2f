"""From the keywords of a request to the engine's ``Request``: names, origins, defaults.

Knows which keyword belongs to which part, and where each setting came from. The parts check their
values themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import RULE, check_bool, check_int, current_names, shown
from cutaway.engine import (
    Autoregressive,
    ConstraintParams,
    Request,
    RunParams,
    Score,
    StopParams,
)
from cutaway.errors import InputError, Name
from cutaway.requests.keywords import KEYWORDS
from cutaway.sampling import Observe, SamplingParams
from cutaway.sampling.observe import MAX_TOP

if TYPE_CHECKING:
    from cutaway.engine import Decoder
    from cutaway.engine.canvas import Rule
    from cutaway.engine.interventions import Intervention

_PARTS: Mapping[str, type] = {
    "sampling": SamplingParams,
    "stopping": StopParams,
    "constraint": ConstraintParams,
    "run": RunParams,
}
_OF_PART = {part: tuple(f.name for f in fields(kind)) for part, kind in _PARTS.items()}
_OBSERVED = ("ledger", "logprobs", "prompt_logprobs", "candidates", "track")
_OWN = ("n", "align", "special", "suffix", "trace", "interventions", "denoise", "adapter")
OPTIONS = tuple(KEYWORDS)
"""Every keyword of a request."""
_UNTOLD = ("replay", "cache_salt")
"""Keywords that change no text, and are not among the settings of one. The salt is a secret."""
_CANDIDATES = 20
"""Candidates that a trace keeps of every step by default."""


@dataclass(frozen=True)
class Options:
    """One request's settings, checked; its prompt comes later. ``KEYWORDS`` says what each does.

    trace    the file, of several texts that of the first: see ``trace.write.numbered``
    draft    what must be loaded to draft: "draft:MODEL", "eagle:PATH" or "mtp"; None: nothing
    sources  where each setting came from: "given", "default", "common" (set for all requests), or
             "chosen" for a seed
    """

    sampling: SamplingParams
    stopping: StopParams
    constraint: ConstraintParams
    run: RunParams
    ledger: bool
    logprobs: int
    prompt_logprobs: int
    candidates: int
    track: tuple[int, ...]
    n: int
    align: bool
    special: bool
    suffix: str
    trace: Path | None
    interventions: "tuple[Intervention, ...]"
    denoise: "Rule | None"
    adapter: str
    draft: str | None
    sources: Mapping[str, str]

    def request(
        self,
        prompt_token_ids: Sequence[int],
        also_track: Sequence[int] = (),
        decoder: "Decoder | None" = None,
    ) -> Request:
        """The engine's request for this prompt.

        also_track: ids that are tracked where a trace observes the run, such as the end tokens
        decoder: how it is written; None: from left to right
        """
        traced = self.candidates > 0
        observe = Observe(
            top=max(self.candidates, self.logprobs),
            track=tuple(dict.fromkeys([*self.track, *(also_track if traced else ())])),
            stages=self.ledger or traced or bool(self.track) or self._weighs,
            after_chain=self.logprobs > 0,
            prompt_top=self.prompt_logprobs,
        )
        decoder = decoder or (Autoregressive() if self.stopping.max_tokens else Score())
        return Request(
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=self.sampling,
            stopping=self.stopping,
            constraint=self.constraint,
            run=self.run,
            observe=observe,
            decoder=decoder,
        )

    @property
    def _weighs(self) -> bool:
        """Whether importance weights of its texts are computed."""
        return self.align or (self.n > 1 and self.constraint.source is not None)

    def traces(self, prompts: int) -> Iterator[Path]:
        """Paths of all samples' traces, if any; InputError where one cannot be written."""
        if self.trace is None:
            return iter(())
        from cutaway.trace.write import check_path, numbered

        names = (numbered(self.trace, i) for i in range(1, 1 + prompts * self.n))
        return iter([check_path(name) for name in names])

    def in_force(self, seed: int | None) -> dict[str, Any]:
        """Every setting by name but the salt, ready for JSON."""
        trace = None if self.trace is None else str(self.trace)
        interventions = [one.to_json() if one.vector else str(one) for one in self.interventions]
        own = {name: getattr(self, name) for name in ("n", "align", "special", "suffix", "adapter")}
        own["replay"] = self.run.replay
        denoise = self.denoise and self.denoise.to_json()
        return (
            self.settings(seed)
            | own
            | {"trace": trace, "interventions": interventions, "denoise": denoise}
        )

    def settings(self, seed: int | None) -> dict[str, Any]:
        """The settings of one text by name: keywords of another request for the same text.

        Those are left out that change no text and are of one run, or secret.
        """
        values = {
            name: getattr(getattr(self, part), name)
            for part, names in _OF_PART.items()
            for name in names
            if name not in _UNTOLD
        }
        values |= {name: getattr(self, name) for name in _OBSERVED}
        if self.draft is not None:
            values["speculate"] = self.draft
        values["seed"] = seed
        if (check := values["check"]) is not None:
            from cutaway.text.grammar.checks import check_named

            values["check"] = check_named(check).name
        if (budget := values["thinking_budget"]) is not None:
            values["thinking_budget"] = budget.to_json()
        values["processors"] = [getattr(p, "__name__", repr(p)) for p in values["processors"]]
        return values


def parse_options(
    given: Mapping[str, Any], common: Mapping[str, Any] | None = None, *, traced: bool = False
) -> Options:
    """Sort the keywords of a request. InputError for an unknown name or a bad value.

    common: keywords of all requests, which ``given`` overrides
    traced: observe every step as for a trace
    """
    given, common = current_names(given), current_names(common or {})
    sources = dict.fromkeys(OPTIONS, "default") | dict.fromkeys(common, "common")
    sources |= dict.fromkeys(given, "given")
    given = {**common, **given}
    _check_names(given)
    if given.get("seed") is None:
        sources["seed"] = "chosen"
    run, draft = _draft_apart(given)
    own = _own(given)
    observed = _observed(given, traced=traced or own["trace"] is not None)
    parts: dict[str, Any] = {
        part: kind(**{name: run[name] for name in _OF_PART[part] if name in run})
        for part, kind in _PARTS.items()
    }
    if parts["stopping"].max_tokens == 0 and not observed["prompt_logprobs"]:
        raise InputError(
            "max_tokens",
            ": 0 writes nothing: ask for 1 token or more (a prompt alone is scored by ",
            Name("prompt_logprobs"),
            ", and over HTTP by echo of /v1/completions)",
        )
    if parts["run"].replay and own["n"] > 1:
        raise InputError(
            "replay", " is of one text: leave out n, or ask for each sample by its seed"
        )
    if own["align"]:
        _check_align(own["n"], parts["constraint"], parts["sampling"])
    if own["denoise"] is not None:
        _check_canvas(parts, observed)
    if own["suffix"] and parts["constraint"].heal is not False:
        raise InputError(
            "heal", ": with a suffix the prompt is not retokenized: leave one of them out"
        )
    return Options(**parts, **observed, **own, draft=draft, sources=sources)


def rule_apart(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a request, where those of a canvas's rule are mixed with the others."""
    from cutaway.engine.canvas import SETTINGS

    settings = current_names(settings, RULE)
    rule = {name: value for name, value in settings.items() if name in SETTINGS}
    return {k: v for k, v in settings.items() if k not in SETTINGS} | {"denoise": rule or True}


def _check_align(n: int, constraint: ConstraintParams, sampling: SamplingParams) -> None:
    if n < 2:
        raise InputError("align", " chooses one of n texts: give n, 2 or more")
    if not constraint.is_set:
        raise InputError(
            "align", " weighs texts under a constraint: give one, such as ", Name("json_schema")
        )
    if sampling.temperature == 0:
        raise InputError(
            "align", ": at temperature 0 the n texts are the same: raise the temperature"
        )


def _check_canvas(parts: Mapping[str, Any], observed: Mapping[str, Any]) -> None:
    """InputError for settings that need a text written from left to right."""
    refused = (
        *((parts["constraint"], f.name) for f in fields(ConstraintParams)),
        (parts["run"], "forced"), (parts["run"], "speculate"),
    )  # fmt: skip
    named = [
        name
        for part, name in refused
        if name not in ("allowed_token_ids", "json_compact", "thought")
        and getattr(part, name) != getattr(type(part)(), name)
    ]
    for name in (*named, *["prompt_logprobs"] * (observed["prompt_logprobs"] > 0)):
        raise InputError(
            name,
            " needs a text that is written from left to right: leave out ",
            Name(name),
            " or denoise",
        )


def _check_names(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in OPTIONS:
            from difflib import get_close_matches

            close = get_close_matches(name, OPTIONS, n=1)
            all_of_them = "cutaway.requests.keywords.RequestOptions names all"
            hint = f"did you mean {close[0]!r}?" if close else all_of_them
            raise InputError(f"unknown option {name!r}; {hint}")


def _taken(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Values of these keywords, or their defaults; InputError for a wrong type."""
    found = {name: given.get(name, KEYWORDS[name].default) for name in names}
    for name, value in found.items():
        row = KEYWORDS[name]
        if row.kind == "bool":
            check_bool(name, value)
        if isinstance(row.default, str) and not isinstance(value, str):
            if value is not None:  # a client may send null
                raise InputError(name, f" must be a string, not {shown(value)}")
            found[name] = row.default
    return found


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    own = _taken(given, _OWN)
    own["n"] = check_int("n", own["n"], 1, 1024)
    if own["trace"] is not None:
        from cutaway.trace.write import check_path

        own["trace"] = check_path(own["trace"])
    if own["interventions"] != ():
        from cutaway.engine.interventions import check_interventions

        own["interventions"] = check_interventions(own["interventions"])
    if own["denoise"] is False:
        own["denoise"] = None
    if own["denoise"] is not None:
        from cutaway.engine.canvas import read_rule

        own["denoise"] = read_rule(own["denoise"])
    return own


def _observed(given: Mapping[str, Any], *, traced: bool) -> dict[str, Any]:
    values = _taken(given, _OBSERVED)
    if traced:
        most = given.get("candidates", _CANDIDATES)
        values["candidates"] = check_int(Name("candidates", prose=": with a trace it"), most, 1)
    for name in ("logprobs", "prompt_logprobs", "candidates"):
        values[name] = check_int(name, values[name], 0, MAX_TOP)
    values["track"] = Observe(track=values["track"]).track
    return values


def _draft_apart(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Take "draft:MODEL" or "eagle:PATH" out of speculate, or "mtp"."""
    speculate = given.get("speculate")
    if not isinstance(speculate, str):
        return given, None
    if speculate == "mtp":
        return given, speculate
    kind, _, model = speculate.partition(":")
    if kind not in ("draft", "eagle"):
        return given, None
    if not model:
        wanted = "draft model, draft:MODEL" if kind == "draft" else "head's folder, eagle:PATH"
        raise InputError("speculate", f": name the {wanted}")
    return {**given, "speculate": kind}, speculate
