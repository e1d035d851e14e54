"""Tests that are left out with pretended GPUs, and why."""

from __future__ import annotations

SPARSE = "a CPU build of torch has no sparse tensors on CUDA"

EXCEPTIONS = {
    "test_same_bits.py::test_the_bits_do_not_depend_on_the_number_of_ranks[shared_and_odd_buffers": SPARSE,
    "test_same_bits.py::test_the_bits_do_not_depend_on_the_number_of_ranks[sparse_embedding": SPARSE,
}
"""The beginning of a test's name after its folder, and the reason."""


def reason_for(test: str) -> str:
    """Why the test with this id is left out; empty if it is not."""
    name = test.rpartition("/")[2]
    return next((reason for begin, reason in EXCEPTIONS.items() if name.startswith(begin)), "")
