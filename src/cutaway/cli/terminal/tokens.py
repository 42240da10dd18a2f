"""How the terminal shows tokens, the same in every command.

A character that cannot be seen is an escape, as ``\\n``; a byte that is no whole character is
``\\xe4``; a token without text is shown by its name, as ``<|im_end|>``.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cutaway.text.characters import printable

if TYPE_CHECKING:
    from cutaway.cli.terminal.drawing import Style
    from cutaway.text import Tokenizer


def text_of(tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
    """What tokens add to the text, or their names: of one token as ``Trace.name_of``."""
    each = (tokenizer.token_bytes(i) or tokenizer.token_name(i).encode() for i in ids)
    return b"".join(each).decode("utf-8", "backslashreplace")


def names_of(tokenizer: "Tokenizer") -> Callable[[int], str]:
    """The function from a token's id to its name."""
    return lambda token_id: text_of(tokenizer, [token_id])


def quoted(name: str) -> str:
    """A name in quotes, so that the spaces at its ends are seen."""
    return f"'{printable(name)}'"


def visible(style: "Style", name: str) -> str:
    """A name without quotes: the spaces at its ends are marks."""
    inner, blank = name.strip(" "), style.pick("␣", "_")
    if not inner:
        return blank * len(name) or "<>"
    left = len(name) - len(name.lstrip(" "))
    right = len(name) - left - len(inner)
    return blank * left + style.text(inner) + blank * right
