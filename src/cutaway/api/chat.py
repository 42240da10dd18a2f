"""Answer a conversation in rounds: tool calls, their results, and the answer to these."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cutaway.base.checks import check_bool, check_int
from cutaway.errors import InputError
from cutaway.requests.base import BaseLLM, Message, read_messages
from cutaway.requests.options import Options
from cutaway.requests.tools import Tools, ToolUse, check_function
from cutaway.text.thinking_switch import ThinkingWish


def answer(
    llm: BaseLLM,
    answers: Callable[..., Any],
    messages: Iterable[Message],
    tools: Tools,
    *,
    tool_choice: Any,
    options: Mapping[str, Any],
    parallel: bool,
    run_tools: bool,
    max_rounds: int,
    continue_final_message: bool,
    wish: ThinkingWish,
) -> Any:
    """Answer a conversation as ``LLM.chat`` says. answers: ``TextWriter.answers``."""
    parsed, conversation = llm.parse_options(options), read_messages(messages)
    rounds = _rounds(run_tools, max_rounds, parsed)
    traces = parsed.traces(rounds)
    if parsed.suffix:
        raise InputError("suffix", ": an answer has none: use generate, or leave it out")
    use = ToolUse(llm.model, tools, tool_choice, parallel, wish)
    if run_tools:
        _check_functions(use)
    new: list[Message] = []
    for number in range(1, rounds + 1):
        goes_on = continue_final_message and not new
        prompt = llm.chat_ids(
            [*conversation, *new], use.tools, continue_final_message=goes_on, **use.variables
        )
        use.set_prompt(prompt, conversation.pop() if goes_on else None)
        round_options: Any = options if parsed.trace is None else {**options, "trace": next(traces)}
        parsed = llm.parse_options(use.options(round_options))
        done = answers([prompt], parsed, is_list=False, grammar=use.grammar)
        done = use.with_notes(use.read(done, f"{len(conversation) + len(new)}"))
        if isinstance(done, list):
            return done
        new += done.new_messages
        if number == rounds or not done.tool_calls:
            break
        new += use.run(done.tool_calls)
        use.free()
    return replace(done, new_messages=tuple(new))


def _rounds(run_tools: Any, rounds: Any, options: Options) -> int:
    """Return the most answers of the rounds; InputError for a bad argument."""
    rounds = check_int("max_rounds", rounds, 1, 1000)
    if check_bool("run_tools", run_tools) and options.n != 1:
        raise InputError("n", " must be 1 where run_tools calls the functions")
    return rounds if run_tools else 1


def _check_functions(use: ToolUse) -> None:
    """Raise InputError unless every tool is a Python function that can be called here."""
    for tool in use.tools:
        if tool.name not in use.functions:
            raise InputError("run_tools", f": {tool.name} is no Python function; run it yourself")
        check_function(use.functions[tool.name])
