"""Text from anywhere, made safe to show on a terminal or a page."""


def printable(text: str) -> str:
    """Characters that cannot be seen, steer a terminal or turn the line around, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_bytes(data: bytes) -> str:
    """``data`` as text, with <0xXX> for each byte of what is no character or cannot be seen."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(char if char.isprintable() else _hex(char) for char in text)


def _hex(char: str) -> str:
    return "".join(f"<0x{byte:02X}>" for byte in char.encode("utf-8", "surrogateescape"))
