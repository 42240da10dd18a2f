"""Errors that say something else: whatever finds a field in a sentence finds it no more."""

from contextlib import contextmanager
from unittest.mock import patch

from cutaway.errors import InputError, Name


def _reword(self, *words):
    """Keep the names, and nothing else of what is said."""
    named = {0} if len(words) > 1 else set()
    kept = (w if i in named or isinstance(w, Name) else " 7" for i, w in enumerate(words))
    super(InputError, self).__init__(*kept)


@contextmanager
def reworded():
    """Within it every InputError that is made says " 7", beside its fields' names."""
    with patch.object(InputError, "__init__", _reword):
        yield
