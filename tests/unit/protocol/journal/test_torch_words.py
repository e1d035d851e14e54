"""Which of torch's errors are another rank's doing. The texts are torch's, NCCL's and Gloo's."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samebits.protocol.journal.failure import FailureKind, describe, kind_of
from samebits.protocol.journal.torch_words import REPLACEMENTS, way_out
from tests.support.promises import promise

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


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


@promise(
    "what-was-decided",
    "An operation without a deterministic form ends with the option, or with what to write; `allow=` lets "
    "the named operator run, no other, and `verify` names it as not proved",
    also=[
        "test_an_operator_that_is_allowed_runs_and_everything_else_stays_exact",
        "test_only_what_is_allowed_runs_and_only_as_long_as_it_is",
        "test_verify_says_what_an_allowed_operator_leaves_unproved",
    ],
)
@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize(
    ("operation", "replacement"),
    [
        (lambda: torch.zeros(3).put_(torch.tensor([0]), torch.ones(1)), "To keep exact numerics, write `x.view(-1)"),
        (lambda: nn.MaxUnpool2d(2)(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64)), "--allow max_unpool2d"),
    ],
)  # fmt: skip
def test_an_operation_without_a_deterministic_form_has_a_way_out(operation, replacement):
    with pytest.raises(RuntimeError) as told:
        operation()
    assert way_out(told.value).startswith(replacement)
    assert "--numerics fast" in way_out(told.value)
    assert describe(0, told.value, Path(__file__), ()).fix == way_out(told.value)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("nll_loss2d_forward_out_cuda_template", "x.permute(0, 2, 3, 1)"),
        ("adaptive_avg_pool2d_backward_cuda", "nn.AvgPool2d"),
        ("upsample_bicubic2d_backward_out_cuda", "bilinear"),
        ("upsample_linear1d_backward_out_cuda", "x.unsqueeze(2)"),
        ("ctc_loss_backward_gpu", "cuDNN"),
        ("cumsum_cuda_kernel", "on the CPU"),
        ("median CUDA with indices output", "on the CPU"),
        ("grid_sampler_2d_backward_cuda", "--numerics fast"),
    ],
)
def test_the_frequent_ones_have_a_replacement(name, replacement):
    error = RuntimeError(f"{name} does not have a deterministic implementation, but you set 'torch.use_deterministic_…")
    assert replacement in way_out(error)
    assert way_out(RuntimeError(f"{name} failed")) == ""


def test_the_replacement_for_pictures_is_the_same_loss():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5, 4, 3, generator=generator), torch.randint(5, (2, 4, 3), generator=generator)
    rows = F.cross_entropy(x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]), y.reshape(-1))
    torch.testing.assert_close(rows, F.cross_entropy(x, y))


def test_the_replacement_for_lines_interpolates_the_same():
    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    square = F.interpolate(x.unsqueeze(2), size=(1, 13), mode="bilinear").squeeze(2)
    torch.testing.assert_close(square, F.interpolate(x, size=13, mode="linear"))


def test_every_replacement_is_on_the_page():
    page = (Path(__file__).parents[4] / "docs" / "guarantees.md").read_text()
    for words in REPLACEMENTS.values():
        for code in re.findall("`([^`]+)`", words):
            assert code in page, code


def test_more_sizes_than_torch_compiles_are_a_mistake_in_a_sentence():
    twice = torch.compile(lambda x: x * 2, backend="eager")
    limited = torch._dynamo.config.patch(
        recompile_limit=2, fail_on_recompile_limit_hit=True, automatic_dynamic_shapes=False
    )
    with pytest.raises(Exception, match="recompile_limit") as told, limited:
        for size in range(2, 6):
            twice(torch.ones(size))
    failure = describe(0, told.value, Path(__file__), ())
    assert failure.kind is FailureKind.USAGE
    assert "called with more than 2 different sizes" in failure.error
    assert "torch.compiler.config.recompile_limit = 1000" in failure.fix


def test_what_stages_told_the_compiler_is_the_way_out():
    words = "torch.compile hides the layers of a prepared Net, which the strategy runs. Call it without torch.compile."
    told = RuntimeError(
        f"Call to graph_break()\n  Explanation: User-inserted graph break. Message: {words}\n  Hint: Remove it."
    )
    assert way_out(told) == words


class PreparedLoader(list[list[Tensor]]):
    """By its name, as the words know it."""


def steps_of_a_loader_that_evaluates() -> None:
    loader = PreparedLoader([[torch.zeros(3, 2), torch.zeros(3)]])
    for step in loader:
        for inputs, labels in step:
            raise AssertionError(inputs, labels)


def a_list_that_cannot_be_unpacked() -> None:
    loader = [[torch.zeros(3, 2)]]
    for step in loader:
        for inputs, labels in step:
            raise AssertionError(inputs, labels)


def a_module_that_is_missing() -> None:
    importlib.import_module("no_such_module.of_ours")


def a_module_that_an_installed_package_has_not() -> None:
    importlib.import_module("torch.no_such_module")


def a_device_that_is_not_there() -> None:
    raise AssertionError("Torch not compiled with CUDA enabled")


def a_second_group() -> None:
    raise ValueError("trying to initialize the default process group twice!")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (steps_of_a_loader_that_evaluates, "To train write `for step in run.steps(loader)`"),
        (a_list_that_cannot_be_unpacked, ""),
        (a_module_that_is_missing, f"Install it where samebits is: {sys.executable} -m pip install no_such_module"),
        (a_module_that_an_installed_package_has_not, ""),
        (a_device_that_is_not_there, 'Leave out .cuda() and .to("cuda")'),
        (a_second_group, "There is a group: leave it out"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_first_mistake_has_a_way_out(program: Callable[[], None], says: str) -> None:
    with pytest.raises((ValueError, AssertionError, ImportError)) as told:
        program()
    assert says in (found := way_out(told.value))
    assert bool(found) == bool(says)
