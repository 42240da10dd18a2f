"""Tools that a model may call: what a client offers, and which it lets the model choose.

Knows OpenAI's forms. Refuses to know models, sampling and HTTP.
"""

from cutaway.text.tools.tool import Tool, ToolChoice, parse_choice, parse_tools

__all__ = ["Tool", "ToolChoice", "parse_choice", "parse_tools"]
