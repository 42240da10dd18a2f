"""Text as it comes, wrapped between words at the width of a terminal.

Knows widths and spaces. Does not know what the text is, nor where it goes.
"""

from collections.abc import Callable

from cutaway.cli.terminal.drawing import width


class WordWrap:
    """Writes a text piece by piece; a word is held until it is whole, or too long for a line.

    write    of text that can be shown
    columns  how many there are now: a terminal's size may change
    """

    def __init__(self, write: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._write, self._columns = write, columns
        self._used, self._word = 0, ""  # cells of the line; a word, with the blanks before it

    def push(self, text: str) -> None:
        """Add to the text."""
        for character in text:
            if character == "\n":
                self.flush()
                self._write("\n")
                self._used = 0
                continue
            is_wide = width(character) > 1  # Chinese, Japanese: a line may end at each character
            if is_wide or (character == " " and self._word.strip(" ")):
                self.flush()
            self._word += character
            if is_wide or width(self._word) >= self._columns():
                self.flush()

    def flush(self) -> None:
        """Write what is held: the text has ended."""
        if not self._word:
            return
        columns = max(self._columns(), 1)
        if self._used and self._used + width(self._word) > columns:
            self._word, self._used = self._word.lstrip(" "), 0
            self._write("\n")
        self._write(self._word)
        self._used, self._word = min(self._used + width(self._word), columns), ""
