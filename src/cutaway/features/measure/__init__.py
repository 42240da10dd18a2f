"""Measurements of a machine and a model, such as speed, quantisation and the bits contract."""
