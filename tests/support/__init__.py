"""Shared by the tests: made-up models and files, oracles, clients, and servers in the process."""
