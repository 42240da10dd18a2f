"""Measurements of a machine and a model: speed beside the limit, quantisation, the bits contract."""
