"""The engines that bench/compare.py compares, each in a process of its own."""
