"""Tables of tiny models of transformers, in shapes odd enough to catch a mistake, by their kind."""
