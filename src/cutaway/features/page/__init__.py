"""``cutaway export``: a page that runs a model by itself."""
