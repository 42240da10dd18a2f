"""The table of stages in docs/sampling.md: ``PYTHONPATH=tests python -m support.stage_table``."""

import re
from pathlib import Path

from cutaway.sampling import PARAMS, PRESETS, STAGES

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
_BETWEEN = re.compile(r"(?<=<!-- stages -->\n).*(?=<!-- end -->)", re.DOTALL)


def stage_table() -> str:
    """Return the table of each stage with its settings, then of each preset's order."""
    lines = ["| | stage | what it does | settings | source |", "|---|---|---|---|---|"]
    for name, spec in STAGES.items():
        params = ", ".join(f"`{p}`{_range(p)}" for p in spec.params)
        lines.append(f"| {spec.letter} | `{name}` | {spec.help} | {params} | {spec.source} |")
    lines += ["", "| preset | order |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(order)} |" for name, order in PRESETS.items()]
    return "\n".join(lines) + "\n"


def _range(name: str) -> str:
    return f" ({PARAMS[name].range}; {PARAMS[name].default:g})" if name in PARAMS else ""


def read_table() -> str:
    """Return the page's text between its markers."""
    match = _BETWEEN.search(PAGE.read_text())
    return match.group() if match else ""


if __name__ == "__main__":
    PAGE.write_text(_BETWEEN.sub(lambda _: stage_table(), PAGE.read_text()))
