"""Which of torch's errors are another rank's doing. The texts are torch's, NCCL's and Gloo's."""

from __future__ import annotations

import pytest
import torch

from lockstep.journal.failure import FailureKind, kind_of

NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, "

OTHERS = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:21474",
    NCCL + "remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer node1<51876>",
    "NCCL communicator was aborted on rank 1.",
]
OWN = [
    torch.AcceleratorError(
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
    ),
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB"),
    RuntimeError(
        NCCL
        + "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This usually "
        "reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA "
        "device 1b000"
    ),
    RuntimeError(
        NCCL
        + "unhandled system error, NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external "
        "library call failed or device error.\nLast error:\nError while creating shared memory segment "
        "/dev/shm/nccl-8Tz (size 33030528), error: No space left on device (28)"
    ),
    RuntimeError(NCCL + "unhandled cuda error, NCCL version 2.27.5\nLast error:\nCuda failure 'out of memory'"),
    RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    RuntimeError("ProcessGroupGloo::send: invalid tensor type at index 0 (expected TensorOptions(device=cpu))"),
]


@pytest.mark.parametrize("text", OTHERS)
def test_the_end_of_a_connection_is_another_ranks_doing(text: str) -> None:
    assert kind_of(RuntimeError(text)) is FailureKind.PEER


@pytest.mark.parametrize("error", OWN, ids=lambda error: str(error)[:30])
def test_what_a_device_or_memory_does_is_never_another_ranks_doing(error: RuntimeError) -> None:
    assert kind_of(error) is FailureKind.SCRIPT
