"""Check: what decides about a token by the text before it, where no grammar can."""

import re
from typing import Protocol


class Check(Protocol):
    """Bytes in, yes or no out; a pure function of them, and nothing else.

    name  as a record of the run calls it
    """

    name: str

    def allows(self, text: bytes, token: bytes) -> bool:
        """Whether a token may follow the text, or the text may end, where the token is empty.

        What is refused stays refused whatever follows: no longer token that begins with it is
        asked about. A text may end within a character.
        """
        ...

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """What is found in every token that can be refused here; None: any token can be."""
        ...
