"""The keywords of one request, sorted into what each room wants, and where each came from.

Knows names and origins. The rooms check the values themselves.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cutaway.checks import check_ids, check_int
from cutaway.engine import RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import Observe, SamplingParams
from cutaway.sampling.observe import MAX_TOP

_SAMPLING = tuple(f.name for f in fields(SamplingParams))
_STOPS = tuple(f.name for f in fields(StopParams))
_RUN = tuple(f.name for f in fields(RunParams) if f.name != "observe")
_SHOWN: Mapping[str, Any] = {
    "ledger": False, "logprobs": 0, "prompt_logprobs": 0, "candidates": 0, "track": (),
}  # fmt: skip
_REQUEST: Mapping[str, Any] = {"n": 1, "special": False, "trace": None}
OPTIONS = (*_SAMPLING, *_STOPS, *_RUN, *_SHOWN, *_REQUEST)
"""The keywords of a request."""

_DRAFT = "draft:"
_CANDIDATES = 20
"""What a trace keeps of every step, where the request does not say."""


@dataclass(frozen=True)
class Options:
    """One request's settings, checked.

    shown     ledger, logprobs, prompt_logprobs, candidates and track, which ``run.observe``
              is made of
    n         samples of the same prompt; the i-th has a seed derived from (seed, i)
    special   parse special tokens such as <|im_start|> in the prompt's text
    trace     the file to record the run in; of several texts the first, see trace.write.numbered
    draft     the model that guesses, where speculate was "draft:MODEL"
    sources   where each setting came from: "given", "default", "server" for one that goes for all
              requests, or "chosen" for a seed
    """

    sampling: SamplingParams
    stops: StopParams
    run: RunParams
    shown: Mapping[str, Any]
    n: int
    special: bool
    trace: Path | None
    draft: str | None
    sources: Mapping[str, str]

    def tracking(self, ids: Iterable[int]) -> "Options":
        """With these token ids reported in every step, too."""
        track = tuple(dict.fromkeys([*self.shown["track"], *ids]))
        shown = {**self.shown, "track": track}
        return replace(self, run=replace(self.run, observe=_observe(shown)), shown=shown)

    def traces(self, prompts: int) -> Iterator[Path]:
        """Where those of all samples go, if they are wanted; InputError where one cannot be."""
        if self.trace is None:
            return iter(())
        from cutaway.trace.write import check_path, numbered

        names = (numbered(self.trace, i) for i in range(1, 1 + prompts * self.n))
        return iter([check_path(name) for name in names])

    def in_force(self, seed: int) -> dict[str, Any]:
        """Every setting by name, ready for JSON."""
        trace = None if self.trace is None else str(self.trace)
        return self.settings(seed) | {"n": self.n, "special": self.special, "trace": trace}

    def settings(self, seed: int) -> dict[str, Any]:
        """Those of one text, by name: the keywords of another request for the same."""
        values = {name: getattr(self.sampling, name) for name in _SAMPLING}
        values |= {name: getattr(self.stops, name) for name in _STOPS}
        values |= {name: getattr(self.run, name) for name in _RUN} | {**self.shown}
        if self.draft is not None:
            values["speculate"] = _DRAFT + self.draft
        values["seed"] = seed
        values["processors"] = [getattr(p, "__name__", repr(p)) for p in values["processors"]]
        return values


def parse_options(
    given: Mapping[str, Any], server: Mapping[str, Any] | None = None, *, observed: bool = False
) -> Options:
    """Sort the keywords of a request. InputError for an unknown name or a bad value.

    server: keywords of all requests, which those given go before; observed: look at every step
    as for a trace
    """
    sources = dict.fromkeys(OPTIONS, "default") | dict.fromkeys(server or (), "server")
    sources |= dict.fromkeys(given, "given")
    given = {**(server or {}), **given}
    for name in given:
        if name not in OPTIONS:
            from difflib import get_close_matches

            close = get_close_matches(name, OPTIONS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(OPTIONS)}"
            raise InputError(f"unknown option {name!r}{hint}")
    request = {name: given.get(name, default) for name, default in _REQUEST.items()}
    request["n"] = check_int("n", request["n"], 1, 1024)
    if not isinstance(request["special"], bool):
        raise InputError(f"special must be true or false, not {request['special']!r}")
    if given.get("seed") is None:
        sources["seed"] = "chosen"
    run, draft = _draft_apart(given)
    if request["trace"] is not None:
        from cutaway.trace.write import check_path

        request["trace"] = check_path(request["trace"])
    if observed or request["trace"] is not None:
        run = {"candidates": _CANDIDATES, **run}
        check_int("candidates: with a trace it", run["candidates"], 1)
    shown = _check_shown({name: run.get(name, default) for name, default in _SHOWN.items()})
    return Options(
        SamplingParams(**{k: v for k, v in given.items() if k in _SAMPLING}),
        StopParams(**{k: v for k, v in given.items() if k in _STOPS}),
        RunParams(observe=_observe(shown), **{k: v for k, v in run.items() if k in _RUN}),
        shown,
        draft=draft,
        sources=sources,
        **request,
    )


def _check_shown(shown: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be shown, as plain values; InputError naming the keyword."""
    if not isinstance(shown["ledger"], bool):
        raise InputError(f"ledger must be true or false, not {shown['ledger']!r}")
    counts = ("logprobs", "prompt_logprobs", "candidates")
    checked = {name: check_int(name, shown[name], 0, MAX_TOP) for name in counts}
    return {**shown, **checked, "track": check_ids("track", shown["track"])}


def _observe(shown: Mapping[str, Any]) -> Observe:
    """What the engine has to note, so that all of it can be shown."""
    return Observe(
        top=max(shown["logprobs"], shown["candidates"]),
        track=shown["track"],
        stages=bool(shown["ledger"] or shown["candidates"] or shown["track"]),
        after_chain=bool(shown["logprobs"]),
        prompt_top=shown["prompt_logprobs"],
    )


def _draft_apart(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Take MODEL out of speculate="draft:MODEL"."""
    speculate = given.get("speculate")
    if not isinstance(speculate, str) or not speculate.startswith(_DRAFT):
        if speculate == "draft":
            raise InputError("speculate: name the model that guesses, draft:MODEL")
        return given, None
    model = speculate.removeprefix(_DRAFT)
    if not model:
        raise InputError("speculate: name the model that guesses, draft:MODEL")
    return {**given, "speculate": "draft"}, model
