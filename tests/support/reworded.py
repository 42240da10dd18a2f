"""Errors that say something else: whatever finds a field in a sentence finds it no more."""

from contextlib import contextmanager
from unittest.mock import patch

from cutaway.errors import InputError, Name


def _reword(self, *words):
    """Keep the names, and nothing else of what is said."""
    fields = {0} if len(words) > 1 else set()
    reworded_words = (
        w if i in fields or isinstance(w, Name) else " 7" for i, w in enumerate(words)
    )
    super(InputError, self).__init__(*reworded_words)


@contextmanager
def reworded():
    """Let every InputError say " 7" beside its fields' names while the block runs."""
    with patch.object(InputError, "__init__", _reword):
        yield
