"""llama.cpp with its file mapped and no copy of it, which is how it runs models beyond memory."""

from typing import Any

from peers import llama_engine


class Engine(llama_engine.Engine):
    """See worker.py. Tokens are random ones: a greedy text would repeat itself, and its experts."""

    repacks = False

    def _next(self, logits: Any) -> list[int]:
        return self._tokens(len(logits))
