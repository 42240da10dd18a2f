"""The keywords of a request: their types are written out once, for editors and type checkers."""

from typing import get_type_hints

from cutaway.requests.keywords import RequestOptions
from cutaway.requests.options import OPTIONS


def test_every_keyword_has_a_type_and_no_other_has():
    assert {*get_type_hints(RequestOptions)} == {*OPTIONS}
    assert len(OPTIONS) == len({*OPTIONS})
