"""The names of a model's files where it is cut into several: NAME-00001-of-00003.gguf.

Knows the form that llama.cpp's gguf-split gives them.
"""

import re

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


def parts_of(name: str) -> list[str]:
    """The names of all files of a model of which this is one, in order; often it alone."""
    found = _PART.fullmatch(name)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        return [name]
    return [f"{found[1]}-{i:05}-of-{found[3]}{found[4]}" for i in range(1, int(found[3]) + 1)]


def whole_name(name: str) -> str:
    """A file's name without the part that it is: NAME.gguf."""
    found = _PART.fullmatch(name)
    return found[1] + found[4] if found else name
