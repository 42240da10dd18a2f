"""A GPU, or what stands for one: Mesa's Vulkan for processors."""

import pytest

from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.errors import CutawayError


@pytest.fixture(scope="session")
def device():
    """An opened device, which keeps the kernels that were compiled."""
    pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")
    try:
        return open_device()
    except CutawayError as error:
        pytest.skip(str(error))
