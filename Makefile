.PHONY: test lint bench

test:
	python -m pytest

lint:
	ruff check .
	ruff format --check .
	mypy
	lint-imports

bench:
	python bench/kv_cache.py
