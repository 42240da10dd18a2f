"""The names that JavaScript and C++ declare, by their tokens: a guess, without a grammar.

The module knows this project's style of the two languages: a type's ``*`` or ``&`` follows the type
directly, a product's has spaces around it. The module does not see names that a macro makes.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|\$\{[^{}]*\}|[^`\\])*`
      |(?<=[=(,:?!&|;])\s*/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/)
  | (?P<name>[A-Za-z_$][\w$]*)
  | (?P<mark>=>|==+|!=+|<=|>=|&&|\|\||::|->|\.\.\.|[^\s\w])
  | (?P<number>\d[\w.]*)
    """,
    re.X | re.S,
)
_NO_TYPE = re.compile(
    """case|class|delete|do|elif|else|enum|goto|if|namespace|new|operator|public|private|protected
    |return|sizeof|struct|throw|typename|union|using|while""",
    re.X,
)
_CONTROL = re.compile("if|for|while|switch|with")
_NO_METHOD = re.compile(f"{_CONTROL.pattern}|catch|return|function|await|typeof|super")
_DECLARATION = re.compile("const|let|var")
_CLOSING = {")": "(", "]": "[", "}": "{"}
_OPENING = {opening: closing for closing, opening in _CLOSING.items()}


class Token(NamedTuple):
    """A word, a mark, a whole comment or a whole string."""

    kind: str  # comment, text, name, mark or number
    text: str
    line: int
    is_spaced: bool  # whether white space precedes it
    is_first: bool  # whether it is the first token of its line


class Name(NamedTuple):
    """A declared name, and the line of its declaration."""

    name: str
    line: int
    is_function: bool = False


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of JavaScript or C++."""
    tokens = []
    line, end = 1, 0
    for match in _TOKEN.finditer(source):
        gap = source[end : match.start()]
        line += gap.count("\n")
        kind, text = match.lastgroup or "", match[0]
        tokens.append(Token(kind, text, line, bool(gap), not end or "\n" in gap))
        line += text.count("\n")
        end = match.end()
    return tokens


def leading_comments(tokens: list[Token]) -> Iterator[tuple[str, int]]:
    """Yield each comment on lines of its own; of comments on successive lines, only the first."""
    last = -1  # the line on which the previous comment ends
    for token in tokens:
        if token.kind == "comment" and token.is_first:
            if token.line != last + 1:
                yield re.sub(r"(?m)^[\s/*!]+", "", token.text), token.line
            last = token.line + token.text.count("\n")


def javascript_names(tokens: list[Token]) -> Iterator[Name]:
    """Yield the variables, parameters, functions, methods and fields."""
    code = [token for token in tokens if token.kind != "comment"]
    ends = _ends(code)
    in_pattern = {
        index for first, last in _patterns(code, ends) for index in range(first + 1, last)
    }
    fields: dict[str, Name] = {}
    declared = set()
    for index, token in enumerate(code):
        before, after = _text(code, index - 1), _text(code, index + 1)
        name = Name(token.text, token.line)
        if token.kind != "name":
            continue
        if before == "function" or (after == "(" and _is_method(code, ends, index)):
            yield name._replace(is_function=True)
        elif _DECLARATION.fullmatch(before):
            declared.add(token.text)
            yield name._replace(is_function=after == "=" and _is_arrow(code, ends, index + 2))
        elif after == "=>" or (index in in_pattern and before in "({[,...:" and after != ":"):
            declared.add(token.text)
            yield name
        elif after == "=" and before in ";{}#":
            fields.setdefault(token.text, name)
    yield from (field for field in fields.values() if field.name not in declared)


def _is_method(code: list[Token], ends: dict[int, int], index: int) -> bool:
    """Whether a method is defined here: a name, parameters and a block."""
    end = ends.get(index + 1, len(code))
    return (
        _text(code, end + 1) == "{"
        and not _NO_METHOD.fullmatch(code[index].text)
        and _text(code, index - 1) not in (".", "new")
    )


def _is_arrow(code: list[Token], ends: dict[int, int], index: int) -> bool:
    """Whether a function begins here: ``(a) =>``, ``a =>`` or ``function``."""
    if _text(code, index) == "async":
        index += 1
    end = ends.get(index, index)
    return _text(code, index) == "function" or _text(code, end + 1) == "=>"


def _patterns(code: list[Token], ends: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of parameters, or of a pattern after ``const``."""
    for first, last in ends.items():
        before, after = _text(code, first - 1), _text(code, last + 1)
        if code[first].text != "(":
            is_pattern = bool(_DECLARATION.fullmatch(before))
        else:
            is_pattern = after == "=>" or (after == "{" and not _CONTROL.fullmatch(before))
        if is_pattern:
            yield first, last


def cpp_names(tokens: list[Token]) -> Iterator[Name]:
    """Yield names that follow a type: variables, parameters, members and functions."""
    code = [token for token in tokens if token.kind != "comment"]
    for index, token in enumerate(code):
        if token.kind != "name" or _NO_TYPE.fullmatch(token.text):
            continue
        after = _text(code, index + 1)
        start = index
        while after == "(" and _text(code, start - 1) == "::":  # a class's method
            start -= 2
        if after in ("=", ";", ",", ")", "{", "[", "(", ":") and _is_type(code, start - 1):
            yield Name(token.text, token.line, after == "(")


def _is_type(code: list[Token], index: int) -> bool:
    """Whether a token ends a type: the type's name, or a mark that follows the name directly."""
    if index < 0:
        return False
    token = code[index]
    if token.kind == "name":
        return not _NO_TYPE.fullmatch(token.text)
    return token.text in ("*", "&", "&&", ">") and not token.is_spaced and index > 0


def _ends(code: list[Token]) -> dict[int, int]:
    """Map the index of each opening bracket to that of its closing bracket."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    for index, token in enumerate(code):
        if token.kind != "mark":
            continue
        if token.text in _OPENING:
            stack.append(index)
        elif token.text in _CLOSING and stack:
            ends[stack.pop()] = index
    return ends


def _text(code: list[Token], index: int) -> str:
    """Return the text of the token at an index; "" before the first and after the last."""
    return code[index].text if 0 <= index < len(code) else ""
