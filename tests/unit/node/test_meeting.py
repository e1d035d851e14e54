"""What one rank does when the others do not come as they should; tests/ranks has the meetings that succeed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path

import pytest
import torch.distributed as dist

from lockstep.errors import WorldError
from lockstep.node import native
from lockstep.node.meeting import meet
from lockstep.node.process import RankProcess

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled part")


def test_more_ranks_than_a_group_can_have_are_refused_before_any_waits_for_another():
    store = dist.HashStore()
    with pytest.raises(WorldError, match="a group has 1 to 254 ranks"):
        meet(store, 0, 255, lambda: "here.py:1")
    assert not store.check(["place/0"])


def test_a_name_in_shared_memory_is_taken_away_when_the_other_rank_does_not_come(monkeypatch):
    name = native.compiled.random_name()
    monkeypatch.setattr(native.compiled, "random_name", lambda: name)
    store = dist.HashStore()
    store.set_timeout(dt.timedelta(seconds=0.2))
    elsewhere = dataclasses.replace(RankProcess.here(), process_names="pid:[1]")
    store.set("place/1", json.dumps([[0, 1], vars(elsewhere), {}]))
    with pytest.raises(WorldError, match="Rank 1 never joined the group"):
        meet(store, 0, 2, lambda: "here.py:1")
    assert store.check(["named/0"])
    assert not list(Path("/dev/shm").glob(f"*{name.strip('/')}*"))
