"""Tools that a model may call: offered, forced and found in its text.

Knows OpenAI's forms of tools and choices, the dialects in which models write calls, and from one
description of a dialect both the grammar that forces a call and the call parser that finds it.
"""

from cutaway.text.tools.call_parser import (
    Arguments,
    CallEnd,
    CallParser,
    CallStart,
    Content,
    Delta,
)
from cutaway.text.tools.dialect import Dialect, call_id
from cutaway.text.tools.grammar import grammar
from cutaway.text.tools.tool import Tool, ToolChoice, parse_choice, parse_tools, tool_of
