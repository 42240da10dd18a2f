"""SamplingParams: a request's sampling settings, checked once.

The command line, the server and the page take their names, ranges, defaults and explanations from
here. definitions.py defines what they do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self, TypeVar

from cutaway.base.checks import check_choice, check_finite, check_ids, check_int, shown
from cutaway.errors import InputError, Name
from cutaway.sampling.definitions import LogitsRow
from cutaway.sampling.stages import PRESETS, STAGES

Processor = Callable[[list[int], LogitsRow], LogitsRow]
"""A user's own stage: (prompt and output ids so far, logits (vocab,)) -> logits (vocab,)."""

MAX_SEED = 2**64 - 1
MAX_BIAS = 100
T = TypeVar("T")


class Param(NamedTuple):
    """A setting that is one number.

    low, high    its range; high is None without an upper end
    above, below whether the range excludes low, or high
    zero         the meaning of 0, if 0 is allowed besides the range
    off          the value at which the setting does nothing
    slider       low, high and step of a slider that shows the useful part of the range
    """

    type: type
    default: float
    help: str
    metavar: str
    low: float
    high: float | None
    off: float
    slider: tuple[float, float, float]
    above: bool = False
    below: bool = False
    zero: str = ""

    @property
    def range(self) -> str:
        """The range in words: "above 0 and at most 1"."""
        if self.high is None:
            return f"{self.low:g} or more"
        if self.above or self.below:
            low = f"{'above' if self.above else 'at least'} {self.low:g}"
            return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"
        zero = f"0 ({self.zero}) or " if self.zero else ""
        return f"{zero}between {self.low:g} and {self.high:g}"

    def check(self, name: str, value: Any) -> float:
        """Return the value as a plain number; InputError if it is outside the range."""
        if self.type is int:
            high = None if self.high is None else int(self.high)
            return check_int(name, value, int(self.low), high)
        number = check_finite(name, value)
        low = number > self.low if self.above else number >= self.low
        high = self.high is None or (number < self.high if self.below else number <= self.high)
        if (low and high) or (self.zero and number == 0):
            return number
        raise InputError(name, f" must be {self.range}, not {number}")


def _param(
    default: T,
    help: str,
    *,
    off: T,
    metavar: str,
    span: tuple[float, float | None],
    slider: tuple[float, float, float],
    **more: Any,
) -> T:
    """Return a field of SamplingParams, with its Param as metadata."""
    more_fields: dict[str, Any] = {"default": default, "off": off, **more}
    low, high = span
    param = Param(
        type=type(default),
        help=help,
        metavar=metavar,
        low=low,
        high=high,
        slider=slider,
        **more_fields,
    )
    value: T = field(default=default, metadata={"param": param})
    return value


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. docs/sampling.md says what each setting does.

    logit_bias     token id -> added to its logit, -100 to 100
    dry_breakers   token ids at which DRY stops comparing, and which it does not penalise
    seed           0 to 2**64 - 1; None lets the engine choose one, and report it
    preset         the order of the stages: a key of PRESETS
    chain          the order itself, instead of a preset: names of stages; other stages are not
                   applied
    processors     callables that get the logits and may change them

    Raises InputError, one sentence naming the field, for a value outside its range.
    """

    temperature: float = _param(
        0.7, "divide the logits: below 1 favours likely tokens, above 1 unlikely ones",
        off=1.0, metavar="T", span=(0.01, 100), zero="greedy", slider=(0, 2, 0.05),
    )  # fmt: skip
    top_k: int = _param(
        0, "keep the K likeliest; 0 keeps all",
        off=0, metavar="K", span=(0, None), slider=(0, 200, 1),
    )  # fmt: skip
    top_p: float = _param(
        0.9, "keep the likeliest that reach this share together; 1 keeps all",
        off=1.0, metavar="P", span=(0, 1), above=True, slider=(0.05, 1, 0.05),
    )  # fmt: skip
    min_p: float = _param(
        0.0, "keep those at least this many times as likely as the best; 0 keeps all",
        off=0.0, metavar="P", span=(0, 1), below=True, slider=(0, 0.5, 0.01),
    )  # fmt: skip
    typical_p: float = _param(
        1.0, "keep those whose surprise is nearest to the entropy, as many as reach this share "
        "together; 1 keeps all",
        off=1.0, metavar="P", span=(0, 1), above=True, slider=(0.05, 1, 0.05),
    )  # fmt: skip
    top_n_sigma: float = _param(
        0.0, "keep the logits within N standard deviations of the highest; 0 keeps all",
        off=0.0, metavar="N", span=(0, 100), slider=(0, 5, 0.1),
    )  # fmt: skip
    xtc_probability: float = _param(
        0.0, "chance per step of removing all tokens above the threshold but the least likely; "
        "0 is never",
        off=0.0, metavar="P", span=(0, 1), slider=(0, 1, 0.05),
    )  # fmt: skip
    xtc_threshold: float = _param(
        0.1, "the probability at which a token counts as likely for XTC",
        off=1.0, metavar="P", span=(0, 1), above=True, slider=(0.01, 0.5, 0.01),
    )  # fmt: skip
    repetition_penalty: float = _param(
        1.0, "divide the positive logits of tokens seen before, multiply the negative; 1 is off",
        off=1.0, metavar="R", span=(0.01, 100), slider=(0.8, 2, 0.05),
    )  # fmt: skip
    presence_penalty: float = _param(
        0.0, "subtract X once if the token was written before",
        off=0.0, metavar="X", span=(-2, 2), slider=(-2, 2, 0.1),
    )  # fmt: skip
    frequency_penalty: float = _param(
        0.0, "subtract X each time that the token was written",
        off=0.0, metavar="X", span=(-2, 2), slider=(-2, 2, 0.1),
    )  # fmt: skip
    dry_multiplier: float = _param(
        0.0, "subtract M from a token that would continue a repetition, and more the longer that "
        "is; 0 is off",
        off=0.0, metavar="M", span=(0, 100), slider=(0, 2, 0.05),
    )  # fmt: skip
    dry_base: float = _param(
        1.75, "DRY: each further repeated token multiplies the penalty by B",
        off=1.0, metavar="B", span=(1, 10), slider=(1, 4, 0.05),
    )  # fmt: skip
    dry_allowed_length: int = _param(
        2, "DRY: shorter repeated passages than N tokens cost nothing",
        off=10_000, metavar="N", span=(1, 10_000), slider=(1, 20, 1),
    )  # fmt: skip
    dry_penalty_last_n: int = _param(
        -1, "DRY: look for the passage in the last N tokens; 0 is off, -1 looks in all",
        off=0, metavar="N", span=(-1, None), slider=(-1, 4096, 1),
    )  # fmt: skip
    dry_breakers: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    preset: str = "cutaway"
    chain: tuple[str, ...] | None = None
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        for name, param in PARAMS.items():  # stored as plain numbers, whatever they came as
            self._store(name, param.check(name, getattr(self, name)))
        self._check_bias()
        self._store("dry_breakers", tuple(sorted({*check_ids("dry_breakers", self.dry_breakers)})))
        check_choice("preset", self.preset, PRESETS)
        if self.seed is not None:
            self._store("seed", check_int("seed", self.seed, 0, MAX_SEED))
        is_list = isinstance(self.processors, (tuple, list))
        if not (is_list and all(callable(processor) for processor in self.processors)):
            raise InputError(
                "processors", f" must be a tuple of callables, not {shown(self.processors)}"
            )
        if self.chain is not None:
            self._check_chain(self.chain)

    def __getstate__(self) -> dict[str, Any]:
        if self.processors:
            names = ", ".join(getattr(p, "__name__", repr(p)) for p in self.processors)
            raise InputError(
                "processors", f": {names} cannot be sent to another process; leave processors out"
            )
        return self.__dict__

    def with_seed(self, seed: int) -> Self:
        """Return the same settings with this seed, which has been checked."""
        params = object.__new__(type(self))  # replace() would check 100,000 biases for each sample
        params.__dict__.update(self.__dict__, seed=seed)
        return params

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the stages, in the order of the chain or the preset."""
        return PRESETS[self.preset] if self.chain is None else self.chain

    def is_off(self, name: str) -> bool:
        """Whether a setting has the value at which it does nothing."""
        value = getattr(self, name)
        return bool(value == PARAMS[name].off if name in PARAMS else not value)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(
                "logit_bias", f" must map token ids to numbers, not {shown(self.logit_bias)}"
            )
        plain: dict[int, float] = {}
        for key, bias in self.logit_bias.items():
            token_id = check_int(Name("logit_bias", prose=": a token id"), key, 0)
            plain[token_id] = check_finite(Name("logit_bias", token_id), bias)
            if not -MAX_BIAS <= plain[token_id] <= MAX_BIAS:
                raise InputError(
                    Name("logit_bias", token_id),
                    f" must be between {-MAX_BIAS} and {MAX_BIAS}, not {shown(bias)}",
                )
        self._store("logit_bias", dict(sorted(plain.items())))

    def _check_chain(self, chain: Any) -> None:
        names = [*chain] if isinstance(chain, (tuple, list)) else None
        if names is None or not all(isinstance(name, str) for name in names):
            raise InputError("chain", f" must be a list of stage names, not {shown(chain)}")
        for n, name in enumerate(names):
            if name not in STAGES:
                raise InputError("chain", f": no stage is called {shown(name)}; {_close(name)}")
            if name in names[:n]:
                raise InputError("chain", f" has {name!r} twice: name each stage once")
        self._store("chain", tuple(names))
        if self.preset != "cutaway":
            raise InputError(
                "preset", " and chain both give the order of the stages: leave one out"
            )
        for name, stage in STAGES.items():
            if name not in names:
                self._check_unused(name, stage.params)

    def _check_unused(self, stage: str, params: tuple[str, ...]) -> None:
        defaults = {f.name: f.default for f in fields(self)} | {"logit_bias": {}}
        for name in params:
            if name == "temperature" and self.temperature == 0:
                continue  # greedy needs no stage
            if getattr(self, name) != defaults[name]:
                raise InputError("chain", f" has no {stage!r}, and {name} is given: leave one out")

    def _store(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen after __post_init__


PARAMS: Mapping[str, Param] = {
    f.name: f.metadata["param"] for f in fields(SamplingParams) if "param" in f.metadata
}
"""The settings that are one number, by name."""


def _close(name: str) -> str:
    """Return the stage that a wrong name may mean, or all stages."""
    from difflib import get_close_matches  # not at every start

    close = get_close_matches(name.lower(), STAGES, n=1)
    return f"did you mean {close[0]!r}?" if close else f"{', '.join(STAGES)} are"
