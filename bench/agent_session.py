"""What a coding agent sends in 60 turns, generated: the same messages and tools each time.

The agent has 40 tools and two files, which it searches, reads, edits and tests in turns; each edit
changes a file, and what is read later has the change. Every sixth turn has a new task. The history
has calls that are written here, not the model's own: so every server reads the same tokens.

``scale`` is that of the lengths: at 1 the system prompt has 8,000 tokens and a result 150 words.
The numbers of turns and tools stay. Knows OpenAI's messages and tools, and a chat template that
writes them; knows no server.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

TURNS = 60
SYSTEM_TOKENS, RESULT_WORDS = 8000, 150
_FILES = ("stack.py", "test_stack.py")
_LINES = 400
_NAMES = ("left", "right", "total", "item", "next", "count", "first", "last", "value", "size")
_TASK_TURNS = ("search", "read_file", "edit_file", "run_tests", "read_file", "edit_file")

TEMPLATE = """\
{%- if tools or messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}
{{- '\\n\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools>\\n\\nCall a function by <tool_call></tool_call> with JSON in it:\\n' }}
{{- '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or message.role == 'assistant' and not message.tool_calls %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""The form of Qwen 2.5 and Hermes; every model of a comparison gets this template."""


@dataclass(frozen=True)
class Turn:
    """A request of the session.

    messages  the conversation up to here
    tool      the tool that the answer must call
    """

    messages: list[dict[str, Any]]
    tool: str


@dataclass(frozen=True)
class AgentSession:
    """All requests of a session, which have the same tools."""

    tools: list[dict[str, Any]]
    turns: list[Turn]

    def parameters(self, tool: str) -> dict[str, Any]:
        """Return the JSON schema of a tool's arguments."""
        functions = (item["function"] for item in self.tools)
        schema: dict[str, Any] = next(f["parameters"] for f in functions if f["name"] == tool)
        return schema


def make_session(
    scale: float, count_tokens: Callable[[str], int], turns: int = TURNS
) -> AgentSession:
    """Make the session. count_tokens: counts a text's tokens, for the system prompt's length"""
    system = _system_prompt(round(SYSTEM_TOKENS * scale), count_tokens)
    workspace = _Workspace(max(8, round(RESULT_WORDS * scale)))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    requests = []
    for index in range(turns):
        tool = _TASK_TURNS[index % len(_TASK_TURNS)]
        if index % len(_TASK_TURNS) == 0:
            messages += workspace.new_task(index)
        requests.append(Turn([*messages], tool))
        messages += workspace.call(index, tool)
    return AgentSession(_tools(), requests)


def _system_prompt(tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Write rules until the prompt has so many tokens."""
    random, lines = Random(0), ["You are a coding agent. Work in small steps, by the tools alone."]
    length = count_tokens(lines[0])
    while length < tokens:
        lines.append(_rule(random, len(lines)))
        length += count_tokens("\n" + lines[-1])
    return "\n".join(lines)


def _rule(random: Random, number: int) -> str:
    verb = random.choice(("Read", "Search", "Test", "Explain", "Check", "Name", "Compare"))
    what = random.choice(("the file", "each function", "the error", "a test", "the last change"))
    when = random.choice(("before you edit", "after each edit", "when a test fails", "at the end"))
    reason = random.choice(("the user reads it", "lines move", "names matter", "tests are slow"))
    return f"{number}. {verb} {what} {when}, since {reason}."


# -- tools ---------------------------------------------------------------------------------------

_PATH = {"enum": [*_FILES]}
_LINE = {"type": "integer", "minimum": 1, "maximum": _LINES}
_TEXT = {"type": "string", "pattern": "^[a-z =+]{1,24}$"}
_USED: dict[str, dict[str, Any]] = {
    "search": {"word": _TEXT, "path": _PATH},
    "read_file": {"path": _PATH, "line": _LINE},
    "edit_file": {"path": _PATH, "line": _LINE, "text": _TEXT},
    "run_tests": {"path": _PATH, "verbose": {"type": "boolean"}},
}
_VERBS = ("list", "show", "create", "delete", "rename", "compare")
_NOUNS = ("branch", "commit", "issue", "process", "package", "note")


def _tools() -> list[dict[str, Any]]:
    """Return the four tools that are called, and 36 that never are."""
    rest: dict[str, dict[str, Any]] = {f"{verb}_{noun}": {} for verb in _VERBS for noun in _NOUNS}
    return [_tool(name, properties) for name, properties in (_USED | rest).items()]


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        parameters |= {"required": [*properties], "additionalProperties": False}
    description = f"{name.replace('_', ' ').capitalize()}."
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


# -- two files that change -----------------------------------------------------------------------


class _Workspace:
    """The agent's files, and the results of its calls on them. words: of a result at most"""

    def __init__(self, words: int) -> None:
        self._words, self._random = words, Random(1)
        self._files = {path: [self._statement() for _ in range(_LINES)] for path in _FILES}

    def new_task(self, index: int) -> list[dict[str, Any]]:
        """Return the agent's report of the last task, and the user's next one."""
        report = [{"role": "assistant", "content": "The tests pass."}] if index else []
        task = f"Mend what is wrong near line {self._line()}."
        return [*report, {"role": "user", "content": task}]

    def call(self, index: int, tool: str) -> list[dict[str, Any]]:
        """Run a call of a tool; return the messages of the call and of its result."""
        arguments = self._arguments(index, tool)
        result = getattr(self, f"_{tool}")(**arguments)
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"call{index:05d}", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self._cut(result)},
        ]

    def _arguments(self, index: int, tool: str) -> dict[str, Any]:
        path = _FILES[index // len(_TASK_TURNS) % len(_FILES)]
        others: dict[str, dict[str, Any]] = {
            "search": {"word": self._random.choice(_NAMES), "path": path},
            "read_file": {"path": path, "line": self._line()},
            "edit_file": {"path": path, "line": self._line(), "text": self._statement()},
            "run_tests": {"path": path, "verbose": True},
        }
        return others[tool]

    def _line(self) -> int:
        return self._random.randint(1, _LINES)

    def _statement(self) -> str:
        left, right, third = self._random.choices(_NAMES, k=3)
        return f"{left} = {right} + {third}"

    def _cut(self, result: str) -> str:
        return " ".join(result.split(" ")[: self._words])

    def _search(self, word: str, path: str) -> str:
        return "; ".join(text for text in self._files[path] if word in text)

    def _read_file(self, path: str, line: int) -> str:
        lines = self._files[path]
        return "; ".join([*lines[line - 1 :], *lines[: line - 1]])

    def _edit_file(self, path: str, line: int, text: str) -> str:
        self._files[path][line - 1] = text
        return "; ".join(self._files[path][max(0, line - 3) :])

    def _run_tests(self, path: str, verbose: bool) -> str:
        assert verbose
        return "; ".join(f"test of {text.split()[0]} passed" for text in self._files[path])
