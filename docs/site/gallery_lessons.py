"""Which lessons the gallery has, and in which order they are best read."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import gallery_choice as choice
import gallery_form as form
import gallery_model as model
from gallery import Desk, Lesson

LESSONS: Mapping[str, Callable[[Desk], Lesson]] = MappingProxyType(
    {
        "temperature": choice.temperature,
        "stages": choice.stages,
        "snowball": choice.snowball,
        "why-it-stopped": form.why_it_stopped,
        "induction": model.induction,
        "intervention": model.intervention,
        "tool-call": form.tool_call,
        "canvas": model.canvas,
        "speculation": model.speculation,
        "quantisations": model.quantisations,
    }
)
"""By name."""
