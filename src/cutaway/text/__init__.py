"""Turn text into tokens and back, as the model's own file defines it.

Knows tokenizers, incremental bytes to text, and the model's own chat template. Heavy libraries are
imported when the first tokenizer or template is made, not here.
"""

from cutaway.text.characters import TextStream
from cutaway.text.chat import ChatTemplate
from cutaway.text.tokenizers import Tokenizer

__all__ = ["ChatTemplate", "TextStream", "Tokenizer"]
