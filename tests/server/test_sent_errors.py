"""Errors go from process to process, say the same there, and are caught by their kind."""

import pickle
import warnings
from importlib import import_module
from pkgutil import walk_packages

import pytest

import cutaway
from cutaway import errors
from cutaway.errors import CutawayError, Name, QueueFullError, TooLongError
from cutaway.server.http.errors import ApiError


def kinds():
    """Every error of cutaway's own, wherever it is defined, but for modules of programs that
    are not installed.
    """
    with warnings.catch_warnings(action="ignore"):  # those of Ray's own modules
        for module in walk_packages(cutaway.__path__, "cutaway."):
            if not module.name.endswith("__main__"):
                _import(module.name)
    found, new = set(), {CutawayError}
    while new:
        found |= new
        new = {kind for one in new for kind in one.__subclasses__()} - found
    return {kind for kind in found if kind.__module__.startswith("cutaway")}


def _import(name):
    try:
        import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name.partition(".")[0] not in ("ray", "llm", "lm_eval", "vllm"):
            raise


def sent(error):
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))


def test_every_error_arrives_with_its_sentence():
    every = kinds()
    types = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {kind for kind in types if issubclass(kind, Exception)} <= every
    for kind in every - {ApiError}:
        arrived = sent(kind("top_k: it must be 0 or more"))
        assert type(arrived) is kind
        assert str(arrived) == "top_k: it must be 0 or more"
        assert isinstance(arrived, CutawayError)
    assert {TooLongError, QueueFullError, ApiError} <= every


def test_an_error_arrives_with_the_field_that_it_is_about():
    name = Name("messages", 3, "content", prose=": a part")
    arrived = sent(TooLongError(name, " is longer than ", Name("max_tokens")))
    assert str(arrived) == "messages[3].content: a part is longer than max_tokens"
    assert (arrived.field, arrived.index, arrived.path) == ("messages", 3, name.path)
    assert str(arrived.renamed("input", 4)) == "input[4]: a part is longer than max_tokens"
    assert isinstance(arrived.args[-1], Name)


@pytest.mark.parametrize(
    "more",
    [{}, {"param": "n", "code": "bad"}, {"headers": {"retry-after": "3"}, "code": "queue_full"}],
)
def test_an_answer_to_a_client_arrives_whole(more):
    error = ApiError(429, "try again", **more)
    arrived = sent(error)
    assert type(arrived) is ApiError
    assert vars(arrived) == vars(error)
    assert (str(arrived), arrived.body("/")) == (str(error), error.body("/"))
