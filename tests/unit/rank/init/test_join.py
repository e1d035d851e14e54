"""Which transport a rank gets; tests/ranks has the meetings themselves."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from samebits.errors import EnvironmentFailure, PeerLost
from samebits.protocol.environment import Position, RankEnvironment
from samebits.rank.init import join as joining

ENVIRONMENT = RankEnvironment(Position(rank=1, world_size=2, local_rank=1, local_world_size=2), None)


@pytest.mark.parametrize(
    ("error", "transport"), [(EnvironmentFailure("no room"), "over Gloo"), (PeerLost("gone"), None)]
)
def test_ranks_talk_over_gloo_when_memory_cannot_be_shared_but_not_without_one_that_ended(
    monkeypatch, error, transport
):
    def raises(*_):
        raise error

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(joining.native, "why_not", lambda: "")
    monkeypatch.setattr(joining, "own_keys", dist.HashStore)
    monkeypatch.setattr(joining, "check_same_kind", lambda *_: None)
    monkeypatch.setattr(joining, "SharedMemoryTransport", raises)
    monkeypatch.setattr(joining, "GroupTransport", lambda: "over Gloo")
    if transport is None:
        with pytest.raises(PeerLost):
            joining.join(ENVIRONMENT, torch.device("cpu"))
    else:
        assert joining.join(ENVIRONMENT, torch.device("cpu")) == transport
