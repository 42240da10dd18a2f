"""SmolLM2's ids, logits and greedy texts of some prompts, by transformers."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
GOLDEN: list[dict[str, Any]] = json.loads((DATA / "smollm2_golden.json").read_text("utf-8"))
