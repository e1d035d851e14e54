"""Ranks with a GPU each: few calls of NCCL for each sum, words in shared memory, and nobody waits for a rank that is gone."""

import hashlib
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.errors import PeerLost
from samebits.protocol.layout.lane_tree import fold
from samebits.protocol.layout.placement import place, place_shares
from samebits.rank.run import start
from samebits.rank.transport.gpu_ranks import GpuTransport
from samebits.rank.transport.over_nodes import OverNodesTransport
from samebits.rank.transport.shared_memory import SharedMemoryTransport
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.pretend.ledger import counted, counts_so_far
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def joined():
    samebits.init()
    transport = start._present[0].components.transport
    assert isinstance(transport, GpuTransport)
    return transport, torch.device("cuda", torch.cuda.current_device())


def nccl_calls(counts):
    return {
        what.removeprefix("nccl: "): number for what, number in counts.items() if what.startswith("nccl: ") and number
    }


def value_of(node, size):
    """The partial of a subtree, added up in the tree's order."""
    lanes = {
        (lane, lane + 1): torch.randn(size, generator=torch.Generator().manual_seed(lane)) * 10.0**lane
        for lane in range(*node)
    }
    return fold(node, lanes, lambda left, right: left + right)


def one_sum(transport, device, placement, size):
    """The sum has the bits of the tree; returns the calls that it took."""
    partials = [value_of(node, size).to(device) for node in placement.subtrees(transport.rank)]
    out = partials[0] if partials else torch.empty(size, device=device)
    with counted() as counts:
        transport.all_reduce(partials, placement, out)
    assert torch.equal(out.cpu(), value_of((0, placement.num_lanes), size)), (placement, size)
    return nccl_calls(counts)


def sums():
    transport, device = joined()
    ranks = transport.world_size
    even, odd = 12 * 1000 * ranks, 12 * 1000 * ranks + 1
    alike = place(ranks, ranks)
    found = [one_sum(transport, device, alike, size) for size in (even, odd, 100)]
    for shares in ([0] * (ranks - 1) + [5], [3, *[1] * (ranks - 2), 3], [2] * ranks):
        placement = place_shares(sum(shares), shares)
        rows = max(len(placement.subtrees(rank)) for rank in range(ranks))
        for size in (even, odd, 17):
            calls = one_sum(transport, device, placement, size)
            assert calls.get("all_to_all", 0) == (rows if size > 17 else 0)
    return found


@promise(
    "same-bits",
    "On pretended GPUs a sum takes two calls of NCCL and has the bits of the tree, also with early "
    "buckets and over two nodes; ranks that share a GPU have the bits of one",
    also=[
        "test_buckets_that_begin_early_take_two_calls_each_and_have_the_bits_of_one_rank",
        "test_ranks_on_two_nodes_have_the_bits_of_one_rank",
        "test_ranks_on_one_gpu_have_the_bits_of_one_rank",
    ],
)
@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.thorough), 3, pytest.param(4, marks=pytest.mark.thorough)]
)
def test_a_sum_takes_two_calls_and_has_the_bits_of_the_tree(ranks):
    for even, odd, small in run_ranks(sums, Started(ranks)):
        assert even == {"all_to_all": 1, "all_gather_into_tensor": 1}
        assert odd == {"all_to_all": 1, "allgather": 1}
        assert small == {"all_gather_into_tensor": 1}


def words():
    transport, device = joined()
    rank = transport.rank
    with counted() as counts:
        transport.barrier()
        assert transport.all_gather_object(rank) == [0, 1]
        on_cpu = torch.full((20_000,), float(rank))
        transport.broadcast(on_cpu, 1)
        assert on_cpu[0] == 1.0
        transport.all_reduce([on_cpu], place(2, 2), on_cpu)
        assert on_cpu[0] == 2.0
    assert not nccl_calls(counts)
    on_device = torch.full((3,), float(rank), device=device)
    assert [each.tolist() for each in transport.all_gather(on_device)] == [[0.0] * 3, [1.0] * 3]
    sent = transport.send(on_device, 1 - rank, 5)
    arrived = torch.empty(3, device=device)
    transport.receive(arrived, 1 - rank, 5)
    sent.wait()
    assert arrived.tolist() == [1.0 - rank] * 3
    return type(transport.control).__name__


def test_what_ranks_on_one_node_tell_each_other_goes_through_shared_memory():
    assert run_ranks(words, Started(2)) == [SharedMemoryTransport.__name__] * 2


def layers(*, is_synchronised=False):
    norm = nn.SyncBatchNorm(1100) if is_synchronised else nn.Identity()
    return nn.Sequential(nn.Linear(8, 1100), norm, *[nn.Linear(1100, 1100) for _ in range(3)], nn.Linear(1100, 4))


def trains(is_synchronised):
    """Three steps of one lane on each rank; the bits, the calls of the last step, and how many buckets there are."""
    torch.manual_seed(0)
    run = samebits.init(seed=0, numerics="exact")
    model = layers(is_synchronised=is_synchronised)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
    before = counts_so_far()
    for step in run.steps(loader):
        before = counts_so_far()
        for samples, labels in step:
            run.backward(F.cross_entropy(model(samples), labels))
        optimizer.step()
        optimizer.zero_grad()
    counts = counts_so_far()
    counts.subtract(before)
    bits = hashlib.sha256(b"".join(one.detach().cpu().numpy().tobytes() for one in model.parameters())).hexdigest()
    return bits, nccl_calls(counts), len(start._present[0].components.strategy.layout.pool.buckets)


def test_buckets_that_begin_early_take_two_calls_each_and_have_the_bits_of_one_rank():
    [[alone, none, _]] = run_ranks(trains, Started(1, lanes=2), False)
    assert not none
    for bits, calls, buckets in run_ranks(trains, Started(2, lanes=2), False):
        assert bits == alone
        assert buckets > 1
        assert calls == {"all_to_all": buckets, "all_gather_into_tensor": buckets + 1}, (
            "one for the losses of the lanes"
        )


def test_ranks_on_two_nodes_have_the_bits_of_one_rank():
    [[alone, _, _]] = run_ranks(trains, Started(1, lanes=3), False)
    for bits, _, _ in run_ranks(trains, Started(3, lanes=3, nodes=(2, 1)), False):
        assert bits == alone


def test_no_bucket_is_under_way_while_a_synchronised_norm_exchanges():
    for _, calls, buckets in run_ranks(trains, Started(2, lanes=2), True):
        assert calls["all_to_all"] == buckets
        assert "two communicators under way" not in calls


def waits_for_the_dead(folder, control):
    transport, device = joined()
    assert type(transport.control).__name__ == control
    data = torch.ones(90_000, device=device)
    placement = place(transport.world_size, transport.world_size)
    transport.all_reduce([data], placement, data)
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for again in range(2):
        with pytest.raises(PeerLost, match=r"[Rr]ank \d (ended|is gone)") as lost:
            transport.all_reduce([data], placement, data)
        assert lost.value.is_dead, again
    transport.close()
    (Path(folder) / f"told-{transport.rank}").touch()


@pytest.mark.parametrize(
    ("nodes", "control"), [((), SharedMemoryTransport), ((1, 2), OverNodesTransport)], ids=["one-node", "two-nodes"]
)
def test_who_waits_in_nccl_for_a_rank_that_is_killed_is_told(nodes, control, tmp_path):
    with pytest.raises(RankFailed, match="failed"):
        run_ranks(waits_for_the_dead, Started(3, nodes=nodes), str(tmp_path), control.__name__)
    assert all((tmp_path / f"told-{rank}").exists() for rank in (0, 2))
