"""Text from anywhere, made safe to show on a terminal or a page."""


def printable(text: str) -> str:
    """Characters that cannot be seen, steer a terminal or turn the line around, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
