"""The signatures of functions that take a request's keywords, as ``help`` and editors read them.

Such a function has ``**options``, whose names a type checker takes from ``Unpack``. What reads the
signature at run time, such as completion in a notebook, finds each keyword with its default here;
``declared_signature`` is the short one, for documents that list the keywords once.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

from cutaway.requests.keywords import KEYWORDS

F = TypeVar("F", bound=Callable[..., Any])


def names_keywords(options: Any) -> Callable[[F], F]:
    """Return a decorator that puts the keywords of a TypedDict into a function's signature."""
    keywords = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, annotation=kind.__forward_arg__, default=_default(name)
        )
        for name, kind in options.__annotations__.items()
    ]

    def name(function: F) -> F:
        form = signature(function)
        parameters = [p for p in form.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        attributes: Any = function
        attributes.__signature__ = form.replace(parameters=[*parameters, *keywords])
        attributes.declared_signature = form
        return function

    return name


def _default(name: str) -> Any:
    """Return a keyword's default; that of a setting of a canvas depends on the model."""
    default = KEYWORDS[name].default if name in KEYWORDS else None
    return {} if isinstance(default, Mapping) else default
