"""What is on disk: weights, folders of transformers, saved prefixes, and where models are found."""
