"""The methods of LLM and AsyncLLM that read texts and draw nothing: each is named here once.

This module turns a function of ``methods/`` into a method when the method is first used, and waits
in the caller's thread for the result. It does not know what is computed.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from cutaway import methods
from cutaway.requests.base import BaseLLM
from cutaway.requests.prefill import PrefillTask, QueuedLLM, prefill
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.methods.scoring import Likelihood, Pair

P = ParamSpec("P")
T = TypeVar("T")


class _Declared(Generic[P, T]):
    """A method that is made from a function when it is first used with a class of models.

    It has the function's signature and docstring; the function's first parameter is the model.
    """

    def __init__(self, load: Callable[[], Callable[..., Any]]) -> None:
        self._load = load

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, model: None, kind: type[SyncLLM]) -> Callable[Concatenate[SyncLLM, P], T]: ...
    @overload
    def __get__(
        self, model: None, kind: type[QueuedLLM]
    ) -> Callable[Concatenate[QueuedLLM, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, model: SyncLLM, kind: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, model: QueuedLLM, kind: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, model: Any, kind: Any) -> Any:
        function = self._load()
        method, form = self._method(kind, function), signature(function)
        model_given, *rest = form.parameters.values()
        method.__signature__ = form.replace(
            parameters=[Parameter("self", model_given.kind), *rest],
            return_annotation=self._result_type(form.return_annotation),
        )
        method.__name__, method.__qualname__ = self._name, f"{kind.__name__}.{self._name}"
        method.__module__ = kind.__module__
        setattr(kind, self._name, method)
        return getattr(kind if model is None else model, self._name)

    def _method(self, kind: Any, function: Callable[..., Any]) -> Any:
        raise NotImplementedError

    def _result_type(self, annotation: Any) -> Any:
        return annotation


class ReadingMethod(_Declared[P, T]):
    """A method made from a function that returns a ``PrefillTask``."""

    def __init__(
        self, load: Callable[[], Callable[Concatenate[BaseLLM, P], PrefillTask[Any, T]]]
    ) -> None:
        super().__init__(load)

    def _method(self, kind: Any, function: Callable[..., Any]) -> Any:
        return kind._as_reading(function)

    def _result_type(self, annotation: Any) -> Any:
        return get_args(annotation)[-1]


class CallingMethod(_Declared[P, T]):
    """A method made from a function that calls an LLM several times."""

    def __init__(self, load: Callable[[], Callable[Concatenate[SyncLLM, P], T]]) -> None:
        super().__init__(load)

    def _method(self, kind: Any, function: Callable[..., Any]) -> Any:
        return kind._as_call(function)


class Readings:
    """The methods of LLM and AsyncLLM that read texts and draw nothing."""

    score = ReadingMethod(lambda: methods.scoring.score)
    likelihood = ReadingMethod(lambda: methods.scoring.likelihood)
    decide = ReadingMethod(lambda: methods.decision.decide)
    embed = ReadingMethod(lambda: methods.embedding.embed)
    embed_tokens = ReadingMethod(lambda: methods.late_interaction.embed_tokens)
    rerank = ReadingMethod(lambda: methods.reranking.rerank)
    near = ReadingMethod(lambda: methods.nearness.near)
    fill = CallingMethod(lambda: methods.filling.fill)
    pseudo_likelihood = CallingMethod(lambda: methods.scoring.pseudo_likelihood)
    logits = CallingMethod(lambda: methods.rows.logits)


class PrefixMethods:
    """Methods that keep a computed prompt on disk, where the weights are in this process."""

    save_prefix = CallingMethod(lambda: methods.prefix.save_prefix)
    restore_prefix = CallingMethod(lambda: methods.prefix.restore_prefix)


class TextReader(Readings, PrefixMethods, SyncLLM):
    """The methods of ``LLM`` that read texts and draw nothing."""

    row = CallingMethod(lambda: methods.rows.row)
    tensors = CallingMethod(lambda: methods.rows.tensors)
    last_rows = CallingMethod(lambda: methods.rows.last_rows)
    logits_at = CallingMethod(lambda: methods.rows.logits_at)
    head = CallingMethod(lambda: methods.rows.head)

    def score_each(
        self, pairs: "Iterable[Pair]", *, special: bool = False, adapter: str = ""
    ) -> "Iterator[Likelihood]":
        """Score any number of (prompt, answer) pairs as ``score`` does, in their order.

        A few hundred pairs are read ahead. Common prefixes of successive pairs are computed once.
        """
        from cutaway.methods.scoring import scores_of_each

        for part in scores_of_each(self, pairs, special=special, adapter=adapter):
            yield from prefill(self.owner, part)

    @staticmethod
    def _as_reading(task: Callable[..., PrefillTask[Any, Any]]) -> Callable[..., Any]:
        @wraps(task)
        def read(self: SyncLLM, /, *args: Any, **kwargs: Any) -> Any:
            return prefill(self.owner, task(self, *args, **kwargs))

        return read

    @staticmethod
    def _as_call(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(self: SyncLLM, /, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        return call
