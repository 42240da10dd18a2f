"""Errors with other words, so that code which finds a field in a sentence fails."""

from contextlib import contextmanager
from unittest.mock import patch

from cutaway.errors import InputError, Name


def _reword(self, *words):
    """Keep the names of an error, and replace all other words."""
    fields = {0} if len(words) > 1 else set()
    reworded_words = (
        w if i in fields or isinstance(w, Name) else " 7" for i, w in enumerate(words)
    )
    super(InputError, self).__init__(*reworded_words)


@contextmanager
def reword():
    """Give every InputError within the block " 7" for all words except its fields' names."""
    with patch.object(InputError, "__init__", _reword):
        yield
