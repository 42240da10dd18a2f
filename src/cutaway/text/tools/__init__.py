"""Tools that a model may call: what a client offers, and how models write calls.

Knows OpenAI's forms of tools and choices, and the dialects of calls in chat templates. Refuses to
know models, sampling and HTTP.
"""

from cutaway.text.tools.dialect import Dialect, call_id
from cutaway.text.tools.tool import Tool, ToolChoice, parse_choice, parse_tools

__all__ = ["Dialect", "Tool", "ToolChoice", "call_id", "parse_choice", "parse_tools"]
