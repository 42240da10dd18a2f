"""What a folder's files hold beside the model of text, which is read past.

Knows how transformers names the parts that read pictures, and blocks that guess tokens ahead (MTP).
"""

import re
from collections.abc import Iterable

UNREAD = "cutaway.unread"
"""The metadata key of what was read past."""

PICTURES, SOUND, AHEAD = "pictures", "sound", "tokens ahead"
ADDED = ".parametrizations.weight.0."
"""In the names of what torch adds to a matrix; `tasks` reads it."""
_ORIGINAL = ".parametrizations.weight.original"
_LAYER = re.compile(r"\blayers\.(\d{1,5})\.")
_PICTURES = re.compile(
    r"(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|embed_vision)\."
)
_SOUND = re.compile(r"(model\.)?(audio_tower|embed_audio)\.")
_AHEAD = re.compile(r"(model\.)?(mtp|mtp_layers)\.")


def plain_name(name: str) -> str:
    """The name of a tensor, to whose matrix torch adds something, without that."""
    found = name.removesuffix(_ORIGINAL)
    return f"{found}.weight" if found != name else name


def unread_part(name: str, behind: range) -> str:
    """Of which of these parts a tensor is; "" where it is the model's own.

    behind: the numbers of the blocks behind the model's own
    """
    if _PICTURES.match(name):
        return PICTURES
    if _SOUND.match(name):
        return SOUND
    layer = _LAYER.search(name)
    return AHEAD if _AHEAD.match(name) or (layer and int(layer[1]) in behind) else ""


def unread(names: Iterable[str], behind: range) -> list[str]:
    """All these parts that there are."""
    return sorted({unread_part(name, behind) for name in names} - {""})
