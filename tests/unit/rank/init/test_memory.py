"""Memory that is freed stays with the process, so it need not be mapped again."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from samebits.rank.init.device import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory()
blocks = [torch.zeros(4 << 20) for _ in range(6)]  # 16 MiB each: more than glibc leaves at the end of its heap
before = faults()
for _ in range(5):
    del blocks
    blocks = [torch.zeros(4 << 20) for _ in range(6)]
print(int(kept), faults() - before)
"""
PAGES = 6 * 4096
"""Of the blocks."""


def run(**variables):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, check=True, capture_output=True, text=True, timeout=60
    )
    return map(int, done.stdout.split())


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}


@pytest.mark.thorough
def test_freed_memory_is_not_mapped_again(environment):
    kept, faults = run(**environment)
    assert kept
    assert faults < 2 * PAGES


@pytest.mark.thorough
def test_who_has_set_the_allocator_is_left_alone(environment):
    kept, faults = run(**environment, MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
    assert faults > 4 * PAGES
