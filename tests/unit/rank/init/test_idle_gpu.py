"""A rank that may choose its device and computes on the CPU says so where there is an accelerator."""

from __future__ import annotations

import pytest
import torch

from samebits.errors import UsageError
from samebits.machine import no_gpu
from samebits.machine.no_gpu import Signs
from samebits.protocol.environment import Position
from samebits.rank.init.device import pin_device, why_cpu
from tests.support.promises import promise


def node(ranks: int) -> Position:
    return Position(rank=0, world_size=ranks, local_rank=0, local_world_size=ranks)


def test_a_machine_without_gpus_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_gpu, "signs_here", lambda: Signs(0, is_there=False, without_driver=False, driver=""))
    assert why_cpu({}, node(1)) == ""


@promise("bad-input-and-what-a-person-is-told", "Accelerators that samebits does not train on are named")
@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_other_accelerators_are_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind))
    assert why_cpu({}, node(1)).startswith(f"There is an accelerator of the kind '{kind}', but samebits trains on")


def test_a_cpu_build_on_a_machine_with_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_gpu, "signs_here", lambda: Signs(1, is_there=True, without_driver=False, driver=""))
    assert "is a CPU build, which cannot use the GPU of this machine. The CPU computes. Install" in why_cpu({}, node(1))
    with pytest.raises(UsageError, match=r'is a CPU build, .* or say device="cpu"\.'):
        pin_device("cuda", Position())


def test_torchs_own_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = Signs(1, is_there=True, without_driver=False, driver="", is_for={"cuda": "13.0"})
    monkeypatch.setattr(no_gpu, "signs_here", lambda: signs)
    assert "torch cannot use the GPU of this machine: Torch not compiled with CUDA enabled. The CPU" in why_cpu(
        {}, node(1)
    )


@pytest.mark.parametrize(
    ("gpus", "ranks", "words"),
    [
        (1, 2, "2 ranks compute on the CPU: torch sees only one GPU here (does each rank's CUDA_VISIBLE_DEVICES"),
        (2, 4, "4 ranks compute on the CPU: torch sees only 2 GPUs here. Start at most 2,"),
        (2, 2, ""),
    ],
)
def test_more_ranks_than_gpus_are_told(gpus: int, ranks: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    told = why_cpu({}, node(ranks))
    assert told.startswith(words)
    assert bool(told) is bool(words)
