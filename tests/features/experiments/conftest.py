"""A tiny model, and a trace of a text that it wrote."""

from fixtures.recorded import *  # noqa: F403
