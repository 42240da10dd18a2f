"""A GPU, or what stands for one: Mesa's Vulkan for processors."""

import pytest

from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.errors import CutawayError

pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")


@pytest.fixture(scope="session")
def device():
    """An opened device, which keeps the kernels that were compiled."""
    try:
        return open_device()
    except CutawayError as error:
        pytest.skip(str(error))
