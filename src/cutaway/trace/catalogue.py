"""Data that the page gets from Python: stages, presets, styles, settings of a canvas, phrases.

The served page and the file that ``to_html`` writes contain it as JSON, so that no script names a
stage.
"""

from cutaway.engine.canvas import SETTING_WORDS
from cutaway.sampling import PARAMS, PRESETS, STAGES, Param, StageSpec
from cutaway.trace.colours import MOST, ORANGE
from cutaway.trace.glosses import GLOSSES
from cutaway.trace.phrases import phrases
from cutaway.trace.record import Json
from cutaway.trace.renames import READABLE, RENAMES, VERSION


def catalogue() -> Json:
    """Plain data.

    stages    in the table's order: name, letter, label, help, params, filter (whether it only
              removes tokens), rule, switches, at_zero (see ``StageSpec``), history; of each param:
              name, type, help, its range and default, the value at which it is off, and how far a
              slider goes
    presets   name → names of stages, in the order in which they run
    styles    settings under one name
    usual     the settings that most people change
    mask      name of the stage of constraints
    canvas    settings of a canvas that the page asks for: name, type, help, and what a text may be
    heat      the colour of every measure: red, green, blue, and the opacity of the largest value
    phrases   why a text ended, and what a constraint did, with places for figures
    glosses   by the name of a figure: what it means
    trace     of the format: its version, those that can be read, and what old names are now
    """
    return {
        "stages": [_stage(name, spec) for name, spec in STAGES.items()],
        "presets": {name: list(order) for name, order in PRESETS.items()},
        "styles": list(_STYLES),
        "usual": list(_USUAL),
        "mask": "constraint",
        "canvas": [_canvas(name) for name in _CANVAS],
        "heat": {"colour": list(ORANGE), "most": MOST},
        "phrases": phrases(),
        "glosses": dict(GLOSSES),
        "trace": {"version": VERSION, "readable": READABLE, "renames": RENAMES},
    }


def _stage(name: str, spec: StageSpec) -> Json:
    return {
        "name": name, "letter": spec.letter, "label": spec.label, "help": spec.help,
        "filter": spec.filter, "rule": dict(spec.rule), "switches": list(spec.switches),
        "at_zero": spec.at_zero, "history": spec.history,
        "params": [_param(p, PARAMS[p]) for p in spec.params if p in PARAMS],
    }  # fmt: skip


def _canvas(name: str) -> Json:
    words = SETTING_WORDS[name]
    return {
        "name": name, "type": words.type.__name__, "choices": list(words.choices),
        "help": words.help.partition(": ")[0].capitalize() + ".",
    }  # fmt: skip


_CANVAS = ("rule", "steps", "block", "threshold", "noise")


def _param(name: str, param: Param) -> Json:
    low, high, step = param.slider
    return {
        "name": name, "type": param.type.__name__, "min": 0 if param.zero else param.low,
        "max": param.high, "default": param.default, "off": param.off,
        "low": low, "high": high, "step": step,
        "help": param.help[:1].upper() + param.help[1:] + ".",
    }  # fmt: skip


_USUAL = ("temperature", "top_p", "top_k")

_STYLES: tuple[Json, ...] = (
    {"name": "greedy", "settings": {"temperature": 0, "top_p": 1},
     "help": "Always the likeliest token: the same text every time, soon the same words again."},
    {"name": "careful", "settings": {"temperature": 0.3, "top_p": 0.8},
     "help": "Close to the likeliest: for facts and code."},
    {"name": "balanced", "settings": {"temperature": 0.7, "top_p": 0.9},
     "help": "Sharper than the model, without its long tail: for most answers."},
    {"name": "pure", "settings": {"temperature": 1, "top_p": 1},
     "help": "The model's own probabilities, nothing removed: what it has learnt, tail and all."},
    {"name": "wild", "settings": {"temperature": 1.4, "top_p": 0.98},
     "help": "Flatter than the model: surprising words, and before long no sense."},
)  # fmt: skip
