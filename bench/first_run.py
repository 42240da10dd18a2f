"""Records the run that the page shows first: SmolLM2, with a text that ends by itself.

    python bench/first_run.py

Writes src/cutaway/trace/web/first-run.jsonl.gz. Its text, and every figure but the times, are the
same each time: seed and weights fix them. Record it again when the format of traces changes; a test
says so.
"""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway import LLM

PROMPT = "The strangest thing about the moon is"
SETTINGS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 64, "seed": 12}
OUT = Path(__file__).parent.parent / "src/cutaway/trace/web/first-run.jsonl.gz"


def main() -> None:
    """Record the run, and check that the model ended the text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        done = LLM("smollm2", progress=False).generate(PROMPT, trace=path, **SETTINGS)
        if done.finish_reason != "end_token":
            raise SystemExit(f"the text was cut: {done.finish_reason}")
        OUT.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    print(f"{OUT.name}: {len(done.token_ids)} tokens, {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
