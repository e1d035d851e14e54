"""Ranks that cannot see each other's processes: each is process 1 of a PID namespace of its own, as in containers."""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore
from torch.utils.data import DataLoader

import samebits
from samebits.rank.transport.local import native
from samebits.rank.transport.shared_memory import SharedMemoryTransport
from samebits.testing.ranks import Started, run_ranks
from samebits.torch_backend import CollectivePeerLost
from tests.scripts import scenarios
from tests.support.launching import stretched

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason=native.why_not())]

NEW_USER, NEW_PROCESS_IDS = 0x10000000, 0x20000000
PATIENCE = dt.timedelta(seconds=20)


def in_a_namespace(scenario, folder):
    """Call `scenario` in a child that is process 1; return its exit code, or None where namespaces cannot be made."""
    unshare = ctypes.CDLL(None).unshare
    if unshare(NEW_PROCESS_IDS) != 0 and unshare(NEW_USER | NEW_PROCESS_IDS) != 0:
        return None
    child = os.fork()
    if child == 0:
        try:
            assert os.getpid() == 1
            scenario(folder)
        except BaseException as error:
            Path(folder, f"error-{os.environ['RANK']}").write_text(f"{type(error).__name__}: {error}")
            raise
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def meets_and_dies(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/meeting", size)
    dist.init_process_group("samebits", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    transport = SharedMemoryTransport(PrefixStore("engine", store), rank, size)
    shared = transport.allocate(1000, torch.float32, torch.device("cpu"))
    shared.fill_(rank)
    transport.broadcast(shared, 1)
    assert shared.eq(1).all()
    mapped = [line for line in Path("/proc/thread-self/maps").read_text().splitlines() if "/dev/shm/" in line]
    assert mapped
    assert all(line.endswith("(deleted)") for line in mapped), "no name is left while they work"
    dist.barrier()
    if rank == 1:
        Path(folder, "death").write_text(str(time.monotonic()))
        os._exit(3)
    try:
        dist.barrier()
    except CollectivePeerLost as error:
        Path(folder, "told").write_text(f"{time.monotonic()} {error}")


def test_ranks_in_namespaces_of_their_own_share_memory_and_notice_a_death(tmp_path):
    codes = run_ranks(in_a_namespace, Started(2), meets_and_dies, str(tmp_path))
    if None in codes:
        pytest.skip("PID namespaces cannot be made here")
    assert [path.read_text() for path in tmp_path.glob("error-*")] == []
    assert codes == [0, 3]
    when, _, text = (tmp_path / "told").read_text().partition(" ")
    assert re.fullmatch(
        r"The default group: Rank 1 ended while rank 0 was waiting for it in barrier \(test_other_namespaces\.py:\d+\)\. "
        r"If rank 1 failed, its own error says why\.",
        text,
    )
    assert float(when) - float((tmp_path / "death").read_text()) < stretched(0.2)


def saves_by_itself(folder):
    """A state after steps 2 and 4, to the memory of rank 0 that no other rank can open."""
    os.chdir(folder)
    run = samebits.init(seed=3, lanes=2, threads=1, strategy="zero1", name="exp1", save_every="2steps")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.BatchNorm1d(300), nn.Linear(300, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(scenarios.digits(64), batch_size=16))
    for _ in run.epochs(1):
        for step in run.steps(loader):
            step.backward(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    assert ("/memfd:samebits-state-" in Path("/proc/thread-self/maps").read_text()) == run.is_main
    samebits.finish()


def test_what_ranks_hold_that_cannot_reach_the_memory_of_a_state_travels(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        codes = run_ranks(in_a_namespace, Started(number), saves_by_itself, str(tmp_path / str(number)))
        if None in codes:
            pytest.skip("PID namespaces cannot be made here")
        assert [path.read_text() for path in (tmp_path / str(number)).glob("error-*")] == []
    files = sorted((tmp_path / "1" / "samebits-runs/exp1/states").glob("*/*.safetensors"))
    assert len({one.parent.name for one in files}) == 2
    for one in files:
        assert one.read_bytes() == (tmp_path / "2" / one.relative_to(tmp_path / "1")).read_bytes(), one
