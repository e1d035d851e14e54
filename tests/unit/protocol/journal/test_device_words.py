"""What is said about an error of a GPU, from torch's words and from what lies in its memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from samebits.protocol.journal import device_words
from samebits.protocol.journal.device_words import GIB, REST, STATE, Device, help_with_device, shortened

MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which "
    "1.94 GiB is free. Including non-PyTorch memory, this process has 77.16 GiB memory in use."
)


@pytest.fixture
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"parameters": GIB, "gradients": 0, STATE: 2 * GIB, REST: 70 * GIB}
    monkeypatch.setattr(device_words, "present", [Device("cuda:1", lambda: held)])
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    return


@pytest.mark.usefixtures("_on_a_gpu")
def test_memory_that_is_used_up_is_told_with_the_largest_first() -> None:
    words = help_with_device(RuntimeError(MEMORY))
    assert words.startswith(
        "cuda:1 holds 70.0 GiB of activations and what the script keeps, 2.0 GiB of optimizer state, 1.0 GiB of parameters. A"
    )
    assert "--strategy zero1" in words
    assert shortened(MEMORY).endswith("of which 1.94 GiB is free.")
    assert shortened("ValueError: x") == "ValueError: x"


def test_memory_of_a_device_that_answers_no_more_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Mapping[str, int]:
        raise RuntimeError("CUDA error: unknown error")

    monkeypatch.setattr(device_words, "present", [Device("cuda:1", broken)])
    assert help_with_device(RuntimeError(MEMORY)).startswith("A smaller batch or more lanes")
    monkeypatch.setattr(device_words, "present", [])
    assert help_with_device(RuntimeError(MEMORY)).startswith("A smaller batch or more lanes")


@pytest.mark.usefixtures("_on_a_gpu")
@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might", "A kernel failed on cuda:1 at this line or before:"),
        ("CUDA error: an illegal memory access was encountered", "A kernel failed on cuda:1 at this line or before:"),
        ("HIP error: an illegal memory access was encountered", "A kernel failed on cuda:1"),
        ("CUDA error: unspecified launch failure", "If `nvidia-smi` does not answer for cuda:1"),
        ("CUDA error: uncorrectable ECC error encountered", "If `nvidia-smi` does not answer for cuda:1"),
        ("CUDA error: no kernel image is available for execution on the device", ""),
        ("some other error", ""),
    ],
)  # fmt: skip
def test_a_kernel_that_failed_and_a_gpu_that_is_gone_are_told_apart(words: str, begins: str) -> None:
    told = help_with_device(RuntimeError(words))
    assert told.startswith(begins)
    assert bool(told) is bool(begins)
    assert not help_with_device(ValueError(words))


@pytest.mark.usefixtures("_on_a_gpu")
def test_where_the_launch_failure_may_be_either_both_are_told() -> None:
    told = help_with_device(RuntimeError("CUDA error: unspecified launch failure"))
    assert "Xid" in told
    assert "CUDA_LAUNCH_BLOCKING=1 stops at the line itself" in told


@pytest.mark.usefixtures("_on_a_gpu")
def test_with_blocking_launches_it_is_this_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert help_with_device(RuntimeError("CUDA error: device-side assert triggered")).startswith(
        "A kernel of this line failed"
    )
