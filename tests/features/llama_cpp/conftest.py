"""The servers that tests share."""

from fixtures.servers import *  # noqa: F403
