"""A rank that ends after it has joined a group, before the others have looked for its process."""

from __future__ import annotations

import datetime as dt
import os
import select
import signal

import pytest
import torch.distributed as dist

from samebits.rank.transport.local import native
from samebits.rank.transport.local.native import compiled
from samebits.testing.ranks import Started, run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason=native.why_not())]

BARRIER, PATIENCE_S, LOST = 0, 30.0, 1


def joins_after_a_death(folder):
    rank = int(os.environ["RANK"])
    store = dist.FileStore(f"{folder}/meeting", 3)
    store.set_timeout(dt.timedelta(seconds=PATIENCE_S))
    if rank == 0:
        memory = compiled.Memory.create(compiled.control_bytes(3), reserve=False)
        store.set("memory", f"/proc/{os.getpid()}/fd/{memory.descriptor}")
    else:
        memory = compiled.Memory.open(store.get("memory").decode())
    if rank == 2:
        store.set("mortal", str(os.getpid()))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # while it waits for rank 1
    elif rank == 1:
        select.select([os.pidfd_open(int(store.get("mortal")))], [], [], PATIENCE_S)
    group = compiled.Group.join(memory, rank, 3, PATIENCE_S, compiled.Tuning(spin_us=2.0), lambda: "", False, [])
    with pytest.raises(compiled.GroupError) as raised:
        group.run(BARRIER, 0, 0, -1, 0, [], [])
    trouble, text = raised.value.args
    assert trouble == LOST, text
    assert text.startswith("Rank 2 ended while rank ")
    store.set(f"told {rank}", text)
    assert store.get("told 0") == store.get("told 1"), "one sentence on every rank"


@pytest.mark.thorough
def test_a_rank_that_ends_while_others_still_join_is_named(tmp_path):
    with pytest.raises(AssertionError, match="rank 2 failed"):
        run_ranks(joins_after_a_death, Started(3, timeout_s=25.0), str(tmp_path))
