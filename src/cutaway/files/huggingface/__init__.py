"""A folder as Hugging Face's transformers writes it, read as if it were a GGUF file.

Knows config.json, safetensors files, tokenizer.json and how llama.cpp's conversion names and stores
what is in them.
"""

from cutaway.files.huggingface.folder import HuggingFaceFolder, parts

__all__ = ["HuggingFaceFolder", "parts"]
