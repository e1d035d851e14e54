"""The memory in which a state lies while a process writes it."""

import os
import resource
from pathlib import Path

import pytest
import torch

from lockstep.checkpoint.tensor_file import Described
from lockstep.run.saving.aside.memory import StateMemory


def test_a_smaller_state_is_copied_after_one_that_could_not_be_mapped():
    memory, tensor = StateMemory(), torch.arange(16.0)
    memory.reserve(4096)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), limits[1]))
    try:
        with pytest.raises(OSError, match="memory"):
            memory.reserve(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    memory.reserve(4096)
    memory.put_tensor(64, tensor, Described.of(tensor, "weight"))
    assert os.pread(memory.descriptor, 64, 64) == tensor.numpy().tobytes()
    memory.close()
