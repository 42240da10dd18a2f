"""Experiments on many runs: a wrong token, a human text, many settings, rules that repair."""
