"""Commands in this process."""

from fixtures.commands import *  # noqa: F403
