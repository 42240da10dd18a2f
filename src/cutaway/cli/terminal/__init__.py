"""The terminal: text, messages and progress beside the text, standard streams and signals."""
