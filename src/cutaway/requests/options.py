"""Options: the keywords of a request, sorted by part, and the source of each.

The parts, such as ``SamplingParams``, check their values themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import RULE, check_bool, check_int, current_names, shown
from cutaway.engine import (
    NAMED_DRAFTS,
    Autoregressive,
    ConstraintParams,
    Request,
    RunParams,
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
_PART_NAMES = {part: tuple(f.name for f in fields(kind)) for part, kind in _PARTS.items()}
_OBSERVE_NAMES = ("ledger", "logprobs", "prompt_logprobs", "candidates", "track")
_OWN_NAMES = ("n", "align", "special", "suffix", "trace", "interventions", "denoise", "adapter")
OPTIONS = tuple(KEYWORDS)
"""Every keyword of a request."""
_UNRECORDED = ("replay", "cache_salt")
"""Keywords that no record has, since they change no text. The salt is also a secret."""
_CANDIDATES = 20
"""Candidates that a trace keeps of every step by default."""


@dataclass(frozen=True)
class Options:
    """One request's settings, checked, without its prompt. ``KEYWORDS`` explains each of them.

    trace    the file of the trace; if there are several texts, the file of the first text's trace:
             see ``trace.write.numbered_path``
    draft    the draft model or head to load: "draft:MODEL", "mtp", "eagle:PATH", …; None: none
    sources  the source of each setting: "given", "default", "common" (set for all requests), or
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
        """Return the engine's request for this prompt.

        also_track: ids to track if a trace observes the run, such as the end tokens
        decoder: how to write the text; None: from left to right
        """
        traced = self.candidates > 0
        observe = Observe(
            top=max(self.candidates, self.logprobs),
            track=tuple(dict.fromkeys([*self.track, *(also_track if traced else ())])),
            stages=self.ledger or traced or bool(self.track) or self._weighs,
            after_chain=self.logprobs > 0,
            prompt_top=self.prompt_logprobs,
        )
        if decoder is None and not self.stopping.max_tokens:
            from cutaway.engine import Score  # most requests write a text

            decoder = Score()
        return Request(
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=self.sampling,
            stopping=self.stopping,
            constraint=self.constraint,
            run=self.run,
            observe=observe,
            decoder=decoder or Autoregressive(),
        )

    @property
    def _weighs(self) -> bool:
        """Whether the importance weights of the texts are computed."""
        return self.align or (self.n > 1 and self.constraint.source is not None)

    def traces(self, prompts: int) -> Iterator[Path]:
        """Yield the paths of all samples' traces, if any; InputError if one cannot be written."""
        if self.trace is None:
            return iter(())
        from cutaway.trace.write import check_path, numbered_path

        names = (numbered_path(self.trace, i) for i in range(1, 1 + prompts * self.n))
        return iter([check_path(name) for name in names])

    def to_json(self, seed: int | None) -> dict[str, Any]:
        """Return every setting by name, except the salt, ready for JSON."""
        trace = None if self.trace is None else str(self.trace)
        interventions = [
            intervention.to_json() if intervention.vector else str(intervention)
            for intervention in self.interventions
        ]
        more = {
            name: getattr(self, name) for name in ("n", "align", "special", "suffix", "adapter")
        }
        more["replay"] = self.run.replay
        denoise = self.denoise and self.denoise.to_json()
        return (
            self.settings(seed)
            | more
            | {"trace": trace, "interventions": interventions, "denoise": denoise}
        )

    def settings(self, seed: int | None) -> dict[str, Any]:
        """Return the settings of one text by name, with which a request writes the text again.

        Settings that change no text, or are secret, are left out.
        """
        values = {
            name: getattr(getattr(self, part), name)
            for part, names in _PART_NAMES.items()
            for name in names
            if name not in _UNRECORDED
        }
        values |= {name: getattr(self, name) for name in _OBSERVE_NAMES}
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
    keywords: Mapping[str, Any], common: Mapping[str, Any] | None = None, *, traced: bool = False
) -> Options:
    """Sort the keywords of a request. InputError for an unknown name or a bad value.

    common: keywords of all requests, which ``keywords`` overrides
    traced: observe every step as for a trace
    """
    keywords, common = current_names(keywords), current_names(common or {})
    sources = dict.fromkeys(OPTIONS, "default") | dict.fromkeys(common, "common")
    sources |= dict.fromkeys(keywords, "given")
    keywords = {**common, **keywords}
    _check_names(keywords)
    if keywords.get("seed") is None:
        sources["seed"] = "chosen"
    run, draft = _split_draft(keywords)
    own_values = _read_own(keywords)
    observe_values = _read_observe(keywords, traced=traced or own_values["trace"] is not None)
    parts: dict[str, Any] = {
        part: kind(**{name: run[name] for name in _PART_NAMES[part] if name in run})
        for part, kind in _PARTS.items()
    }
    if parts["stopping"].max_tokens == 0 and not observe_values["prompt_logprobs"]:
        raise InputError(
            "max_tokens",
            ": 0 writes nothing: ask for 1 token or more (a prompt alone is scored by ",
            Name("prompt_logprobs"),
            ", and over HTTP by echo of /v1/completions)",
        )
    if parts["run"].replay and own_values["n"] > 1:
        raise InputError(
            "replay", " is of one text: leave out n, or ask for each sample by its seed"
        )
    if own_values["align"]:
        _check_align(own_values["n"], parts["constraint"], parts["sampling"])
    if own_values["denoise"] is not None:
        _check_canvas(parts, observe_values)
    if own_values["suffix"] and parts["constraint"].heal is not False:
        raise InputError(
            "heal", ": with a suffix the prompt is not retokenized: leave one of them out"
        )
    return Options(**parts, **observe_values, **own_values, draft=draft, sources=sources)


def split_rule(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's keywords, with those of a canvas's rule gathered under ``denoise``."""
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
    """Raise InputError for settings that only a text written from left to right can have."""
    excluded = (
        *((parts["constraint"], f.name) for f in fields(ConstraintParams)),
        (parts["run"], "forced"), (parts["run"], "speculate"),
    )  # fmt: skip
    names = [
        name
        for part, name in excluded
        if name not in ("allowed_token_ids", "json_compact", "thought")
        and getattr(part, name) != getattr(type(part)(), name)
    ]
    for name in (*names, *["prompt_logprobs"] * (observed["prompt_logprobs"] > 0)):
        raise InputError(
            name,
            " needs a text that is written from left to right: leave out ",
            Name(name),
            " or denoise",
        )


def _check_names(keywords: Mapping[str, Any]) -> None:
    for name in keywords:
        if name not in OPTIONS:
            from difflib import get_close_matches

            close = get_close_matches(name, OPTIONS, n=1)
            all_of_them = "cutaway.requests.keywords.RequestOptions names all"
            hint = f"did you mean {close[0]!r}?" if close else all_of_them
            raise InputError(f"unknown option {name!r}; {hint}")


def _read_values(keywords: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of these keywords, or their defaults; InputError for a wrong type."""
    values = {name: keywords.get(name, KEYWORDS[name].default) for name in names}
    for name, value in values.items():
        row = KEYWORDS[name]
        if row.kind == "bool":
            check_bool(name, value)
        if isinstance(row.default, str) and not isinstance(value, str):
            if value is not None:  # a client may send null
                raise InputError(name, f" must be a string, not {shown(value)}")
            values[name] = row.default
    return values


def _read_own(keywords: Mapping[str, Any]) -> dict[str, Any]:
    values = _read_values(keywords, _OWN_NAMES)
    values["n"] = check_int("n", values["n"], 1, 1024)
    if values["trace"] is not None:
        from cutaway.trace.write import check_path

        values["trace"] = check_path(values["trace"])
    if values["interventions"] != ():
        from cutaway.engine.interventions import check_interventions

        values["interventions"] = check_interventions(values["interventions"])
    if values["denoise"] is False:
        values["denoise"] = None
    if values["denoise"] is not None:
        from cutaway.engine.canvas import read_rule

        values["denoise"] = read_rule(values["denoise"])
    return values


def _read_observe(keywords: Mapping[str, Any], *, traced: bool) -> dict[str, Any]:
    values = _read_values(keywords, _OBSERVE_NAMES)
    if traced:
        candidates = keywords.get("candidates", _CANDIDATES)
        values["candidates"] = check_int(
            Name("candidates", prose=": with a trace it"), candidates, 1
        )
    for name in ("logprobs", "prompt_logprobs", "candidates"):
        values[name] = check_int(name, values[name], 0, MAX_TOP)
    values["track"] = Observe(track=values["track"]).track
    return values


def _split_draft(keywords: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Take "draft:MODEL", "eagle:PATH", another of NAMED_DRAFTS or "mtp" out of ``speculate``."""
    speculate = keywords.get("speculate")
    if not isinstance(speculate, str):
        return keywords, None
    if speculate == "mtp":
        return keywords, speculate
    kind, _, model = speculate.partition(":")
    if kind not in NAMED_DRAFTS:
        return keywords, None
    if not model:
        raise InputError("speculate", f": name the {NAMED_DRAFTS[kind]}")
    return {**keywords, "speculate": kind}, speculate
