"""What the page takes from Python: stages, the presets' orders, styles, and words on the end.

The served page and the file that ``to_html`` writes both hold it as JSON, so that no script names
a stage.
"""

from math import ceil

from cutaway.sampling import PRESETS
from cutaway.trace.figures import stage_letter
from cutaway.trace.phrases import phrases
from cutaway.trace.record import Json


def catalogue() -> Json:
    """Plain data.

    stages    in the table's order: name, letter, label, help, params, filter (whether it only
              removes tokens); of each param: name, type, help, the value at which it is off, and
              how far a slider goes
    presets   name → names of stages, in the order in which they run
    styles    settings under one name
    phrases   why a text ended, with places for figures
    """
    return {
        "stages": [_stage(stage) for stage in _STAGES],
        "presets": {name: list(order) for name, order in PRESETS.items()},
        "styles": list(_STYLES),
        "phrases": phrases(),
    }


def _stage(stage: Json) -> Json:
    params = [{**param, **_slider(param), "off": param["default"]} for param in stage["params"]]
    return {**stage, "letter": stage_letter({"stage": stage["name"]}), "params": params}


def _slider(param: Json) -> Json:
    """The part of a setting's range that people use: from ``low`` to ``high`` by ``step``."""
    if param["type"] == "int":
        return {"low": param["min"], "high": min(param["max"], 200), "step": 1}
    high = min(param["max"], 2)
    step = 0.01 if high <= 1 else 0.05
    return {"low": max(ceil(param["min"] / step) * step, -2), "high": high, "step": step}


def _param(name: str, default: float, span: tuple[float, float], help: str) -> Json:
    low, high = span
    kind = type(default).__name__
    return {"name": name, "type": kind, "min": low, "max": high, "default": default, "help": help}


_STAGES: tuple[Json, ...] = (
    {"name": "logit_bias", "label": "logit bias", "filter": False, "params": [],
     "help": "Adds to the logits of chosen tokens."},
    {"name": "penalties", "label": "penalties", "filter": False,
     "help": "Lowers the logits of tokens that were seen before.",
     "params": [
         _param("repetition_penalty", 1.0, (0.01, 100),
                "Divides the positive logits of tokens seen before, and multiplies the negative. "
                "1 is off."),
         _param("presence_penalty", 0.0, (-2, 2),
                "Is subtracted once from the logit of a token that was written before."),
         _param("frequency_penalty", 0.0, (-2, 2),
                "Is subtracted each time that the token was written."),
     ]},
    {"name": "processors", "label": "processors", "filter": False, "params": [],
     "help": "Functions of the caller's own."},
    {"name": "temperature", "label": "temperature", "filter": False,
     "help": "Divides the logits.",
     "params": [
         _param("temperature", 1.0, (0, 100),
                "Divides the logits: below 1 the likely gain, above 1 the unlikely. 0 is greedy."),
     ]},
    {"name": "top_k", "label": "top-k", "filter": True, "help": "Keeps the likeliest.",
     "params": [
         _param("top_k", 0, (0, 2**31 - 1), "Keeps this many of the likeliest. 0 keeps all."),
     ]},
    {"name": "top_p", "label": "top-p", "filter": True,
     "help": "Keeps the likeliest that reach a share together.",
     "params": [
         _param("top_p", 1.0, (0.01, 1),
                "Keeps the likeliest tokens that reach this share together. 1 keeps all."),
     ]},
    {"name": "min_p", "label": "min-p", "filter": True,
     "help": "Keeps those near the best in probability.",
     "params": [
         _param("min_p", 0.0, (0, 0.99),
                "Keeps those at least this many times as likely as the best. 0 keeps all."),
     ]},
)  # fmt: skip

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
