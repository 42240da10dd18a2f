"""Files on disk: weights, folders of transformers, saved prefixes, and where to find models."""
