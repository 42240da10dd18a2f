"""What LLM has AsyncLLM has, and what runs the model takes an adapter: or a reason is here."""

import inspect

import pytest

from cutaway import LLM, AsyncLLM

ONLY_LLM = {
    "engine": "AsyncLLM has its own, of another kind",
    "row": "a row of a look: run_blocking calls what needs an LLM",
    "last_rows": "as row",
    "logits_at": "as row",
    "head": "as row",
    "tensors": "as row",
    "generate_each": "tasks of generate: the loop has them in one batch",
    "streams": "submit",
    "answers": "generate, once its options are parsed",
    "start": "streams, likewise",
    "add": "as start",
    "request": "what runs beside others, as row",
    "draft": "a draft model is named where the model is",
    "load_draft": "a draft model is named where the model is",
    "hand_over": "an engine comes from an LLM and goes back there",
    "take_back": "as hand_over",
    "with_adapter": "for what takes an LLM; run_blocking calls that",
}
ONLY_ASYNC = {
    "aclose": "an LLM closes at once",
    "drain": "an LLM has no queue that outlives its calls",
    "alive": "an LLM says InputError",
    "state": "an LLM has its engine",
    "replicas": "an LLM has none",
    "queue": "what has no weights asks where they are",
    "run_blocking": "as queue",
    "parse": "an LLM has no options of all requests",
    "parse_async": "as parse",
    "submit": "streams",
    "tool_options": "an LLM's thread waits for its own grammars alone",
    "read_in_turn": "as tool_options",
    "end_compiling": "as tool_options",
    "run_in_turn": "as queue",
}
NOT_IN_TASKS = {
    "chat": "run_tools and max_rounds: a task runs what is called itself",
}
RUNS_NOTHING = {
    "accepts", "adapter_hash", "chat_ids", "chat_prompt", "check_length", "close", "detokenize",
    "hand_over", "load_adapter", "load_draft", "parse_options", "read_prompt", "take_back",
    "tokenize", "tool_options", "unload_adapter", "with_adapter",
    "add", "answers", "start",  # whose options have it
    "request",  # under the adapter of its model
    "aclose", "run_blocking", "drain", "end_compiling", "read_in_turn", "parse", "parse_async",
    "queue", "run_in_turn", "state", "submit",
}  # fmt: skip


def methods(kind):
    found = {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def keywords(method):
    """Names that it takes, and whether it takes others."""
    given = inspect.signature(method).parameters
    return set(given), any(one.kind is one.VAR_KEYWORD for one in given.values())


def test_each_has_what_the_other_has_or_a_reason():
    ours, theirs = ({n for n in dir(kind) if not n.startswith("_")} for kind in (LLM, AsyncLLM))
    assert ours - theirs == ONLY_LLM.keys()
    assert theirs - ours == ONLY_ASYNC.keys()


@pytest.mark.parametrize("name", sorted(methods(LLM).keys() & methods(AsyncLLM).keys()))
def test_with_the_same_keywords_or_a_reason(name):
    ours, _ = keywords(methods(LLM)[name])
    theirs, others = keywords(methods(AsyncLLM)[name])
    assert (others or ours <= theirs) or name in NOT_IN_TASKS
    assert theirs <= ours | {"how"}


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_what_runs_the_model_takes_an_adapter(kind):
    lacking = set()
    for name, method in methods(kind).items():
        taken, others = keywords(method)
        if not (others or "adapter" in taken):
            lacking.add(name)
    assert lacking <= RUNS_NOTHING
