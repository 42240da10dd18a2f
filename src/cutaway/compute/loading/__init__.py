"""Open a model's file or folder, and make the backend, tokenizer and other parts from it."""
