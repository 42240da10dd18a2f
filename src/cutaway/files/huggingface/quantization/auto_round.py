"""AutoRound (Cheng et al. 2023, arXiv 2309.05516): its integers lie as those of GPTQ or of AWQ.

Knows the names of its packings. Which zeros of GPTQ's first version are stored less 1, and which
are not, is in auto-round's inference/backend.py.
"""

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.awq import Awq
from cutaway.files.huggingface.quantization.gptq import Gptq

_GPTQ = {"auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round": "gptq_v2"}
"""By packing_format: the version."""
_AWQ = "auto_round:auto_awq"
_UNQUANTISED = 16  # bits, and more


def read_auto_round(said: JsonObject) -> Gptq | Awq:
    """From a quantization_config; FormatError for other packings, floats and matrices of other
    bits."""
    said.must_be("data_type", "int")
    _check_alike(said)
    packing = said.text("packing_format") or ""
    if packing == _AWQ:
        return Awq.read(said)
    if packing not in _GPTQ:
        said.refuse("packing_format", f"{', '.join([*_GPTQ, _AWQ])} are")
    return Gptq.read(JsonObject({**said.values, "checkpoint_format": _GPTQ[packing]}, said.file))


def _check_alike(said: JsonObject) -> None:
    """Refuse matrices of other bits than the most: their sizes do not say which have which."""
    others = said.part("extra_config")
    for name in others.values:
        own = others.part(name)
        bits = own.get("bits") or said.get("bits")
        if isinstance(bits, int) and bits >= _UNQUANTISED:
            continue
        if any(own.get(key) not in (None, said.get(key)) for key in ("bits", "group_size")):
            others.refuse(name, "only matrices of the same bits and group_size are")
