"""Which CUDA device a rank may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.errors import UsageError
from samebits.protocol.case import cases_in
from samebits.protocol.environment import Position
from samebits.rank.start.guards.device_guard import check_device_index, crowded_device


@pytest.mark.parametrize(
    ("index", "position", "gpus", "sentence"),
    [
        (5, Position(5, 1, 8, 4), 4, 'torch.cuda.set_device(5) got the global rank, but devices are numbered per node, and this one has 4. Use int(os.environ["LOCAL_RANK"]), which is 1 here.'),
        (3, Position(3, 3, 4, 4), 2, "torch.cuda.set_device(3): 4 ranks were started, but torch sees 2 GPUs here. Start 2, or let ranks share GPUs with index % 2."),
        (2, Position(0, 0, 2, 2), 2, "torch.cuda.set_device(2): torch sees 2 GPUs here, counted from 0."),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_one_sentence(index: int, position: Position, gpus: int, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_device_index(index, position, gpus)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("index", [0, 1])
def test_a_device_that_is_there_passes(index: int) -> None:
    check_device_index(index, Position(1, 1, 2, 2), 2)


def test_a_model_on_device_0_in_another_rank_is_noted() -> None:
    note = crowded_device(0, Position(1, 1, 2, 2), 2)
    assert note is not None
    assert note.startswith("rank 1: the model is on cuda:0, which local rank 0 uses too, while cuda:1 is free.")


@pytest.mark.parametrize(
    ("index", "position", "gpus"),
    [
        (1, Position(1, 1, 2, 2), 2),
        (0, Position(0, 0, 2, 2), 2),
        (0, Position(1, 1, 2, 2), 1),
        (None, Position(1, 1), 2),
    ],
)
def test_own_devices_and_devices_that_must_be_shared_are_not_noted(
    index: int | None, position: Position, gpus: int
) -> None:
    assert crowded_device(index, position, gpus) is None


GUARDED = """
import inspect, sys, types
from pathlib import Path
from samebits.errors import UsageError
from samebits.rank.start.guards.device_guard import guard_devices
from samebits.protocol.case import cases_in
from samebits.protocol.environment import Position
if sys.argv[1] == "after":
    import torch
guard_devices(Position(1, 1, 2, 2), Path(sys.argv[2]))
import torch, torch.distributed as dist
assert [call.__name__ for call, _ in torch.cuda._queued_calls][-1] == "pin", "waits until CUDA is initialised"
assert not torch.cuda.is_initialized()
assert list(inspect.signature(torch.cuda.set_device).parameters) == ["device"]
for device in (torch.cuda.device_count(), f"cuda:{torch.cuda.device_count()}"):
    try:
        torch.cuda.set_device(device)
    except UsageError as error:
        assert "torch sees" in str(error)
    else:
        raise AssertionError("a device that is not there")
torch.cuda.set_device(-1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), bucket_cap_mb=1)
assert type(model) is torch.nn.parallel.DistributedDataParallel


class OnDevice0(torch.nn.Linear):
    def parameters(self, recurse=True):  # where its first parameter is, as the guard asks; then as they are
        del OnDevice0.parameters
        yield types.SimpleNamespace(device=torch.device("cuda", 0))


torch.cuda.device_count = lambda: 2
torch.nn.parallel.DistributedDataParallel(OnDevice0(1, 1))
dist.destroy_process_group()
"""


@pytest.mark.ranks
@pytest.mark.parametrize("moment", [pytest.param(one, marks=pytest.mark.thorough) for one in ("before", "after")])
def test_the_guard_stands_in_a_real_torch_before_and_after_its_import(moment: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, moment, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (case,) = cases_in(tmp_path / "findings.jsonl")
    assert (case.finding, case.ranks) == ("shared-device", (1,))
    assert case.said in " ".join(done.stderr.split())
