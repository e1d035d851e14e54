"""One suite for every transport: shared memory and Gloo between processes, the fake between threads, one rank alone."""

import re

import pytest
import torch

from samebits.errors import PeerLost, UsageError
from samebits.protocol.journal.spans import spans
from samebits.protocol.layout.lane_tree import fold
from samebits.protocol.layout.placement import place, place_shares
from samebits.rank.run import start
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.local import native
from samebits.rank.transport.over_nodes import OverNodesTransport
from samebits.rank.transport.shared_memory import SharedMemoryTransport
from samebits.rank.transport.torch_group import GroupTransport
from samebits.testing.fake_transport import FakeWorld
from samebits.testing.ranks import RankFailed, Started, run_ranks


def over_shared_memory(check, ranks, *args):
    return run_ranks(in_shared_memory, Started(ranks, lanes=ranks), check, args)


def in_shared_memory(check, args):
    start.init()
    transport = start._present[0].components.transport
    assert isinstance(transport, SharedMemoryTransport)
    return check(transport, *args)


def over_two_nodes(check, ranks, *args):
    return run_ranks(over_nodes, Started(ranks, lanes=ranks, nodes=(2, ranks - 2)), check, args)


def over_three_nodes(check, ranks, *args):
    return run_ranks(over_nodes, Started(ranks, lanes=ranks, nodes=(2, 1, ranks - 3)), check, args)


def over_nodes(check, args):
    start.init()
    transport = start._present[0].components.transport
    assert isinstance(transport, OverNodesTransport)
    return check(transport, *args)


def over_gloo(check, ranks, *args):
    return run_ranks(in_gloo, Started(ranks, lanes=ranks), check, args)


def in_gloo(check, args):
    start.init()
    return check(GroupTransport(), *args)


def over_fake(check, ranks, *args):
    return FakeWorld(ranks).run(lambda transport: check(transport, *args))


def over_alone(check, ranks, *args):
    assert ranks == 1
    return [check(AloneTransport(), *args)]


COMPILED = pytest.mark.skipif(not native.available(), reason=native.why_not())

WORLDS = [
    pytest.param(over_shared_memory, 2, id="shared-memory-2", marks=[pytest.mark.ranks, COMPILED]),
    pytest.param(over_shared_memory, 3, id="shared-memory-3", marks=[pytest.mark.ranks, COMPILED]),
    pytest.param(over_gloo, 2, id="gloo-2", marks=pytest.mark.ranks),
    pytest.param(over_gloo, 3, id="gloo-3", marks=pytest.mark.ranks),
    pytest.param(over_two_nodes, 3, id="nodes-2-1", marks=[pytest.mark.ranks, COMPILED]),
    pytest.param(over_two_nodes, 4, id="nodes-2-2", marks=[pytest.mark.ranks, pytest.mark.thorough, COMPILED]),
    pytest.param(over_three_nodes, 5, id="nodes-2-1-2", marks=[pytest.mark.ranks, pytest.mark.thorough, COMPILED]),
    pytest.param(over_fake, 4, id="fake-4"),
    pytest.param(over_alone, 1, id="alone"),
]
world = pytest.mark.parametrize(("start_ranks", "ranks"), WORLDS)


def lane_value(lane, size, dtype):
    generator = torch.Generator().manual_seed(lane)
    return (torch.randn(size, generator=generator) * 10.0**lane).to(dtype)


def expected_sum(num_lanes, size, dtype):
    leaves = {(lane, lane + 1): lane_value(lane, size, dtype) for lane in range(num_lanes)}
    return fold((0, num_lanes), leaves, lambda left, right: left + right)


def partials_of(transport, placement, size, dtype):
    nodes = placement.subtrees(transport.rank)
    leaves = {(lane, lane + 1): lane_value(lane, size, dtype) for lane in placement.lanes(transport.rank)}
    return [fold(node, leaves, lambda left, right: left + right) for node in nodes]


def check_sums(transport):
    for size in (1, 5, 1000, 20_001, 60_000):
        for num_lanes in (transport.world_size, transport.world_size + 3, 8):
            for dtype in (torch.float32, torch.float64):
                placement = place(num_lanes, transport.world_size)
                partials = partials_of(transport, placement, size, dtype)
                out = torch.full((size,), 7.0, dtype=dtype)
                transport.all_reduce(partials, placement, out)
                assert torch.equal(out, expected_sum(num_lanes, size, dtype)), (size, num_lanes, dtype)


def check_sum_in_place(transport):
    placement = place(transport.world_size, transport.world_size)
    [mine] = partials_of(transport, placement, 50_000, torch.float32)
    transport.all_reduce([mine], placement, mine)
    assert torch.equal(mine, expected_sum(transport.world_size, 50_000, torch.float32))


def check_part_of_large(transport):
    """Nothing around a part of a large window changes."""
    placement, size, at = place(transport.world_size, transport.world_size), 4 << 20, 12_345
    large = transport.allocate(size, torch.float32, torch.device("cpu"))
    sums = transport.allocate(size, torch.float32, torch.device("cpu")).fill_(7.0)
    for count in (1, 64, 50_001):
        [mine] = partials_of(transport, placement, count, torch.float32)
        part, out = large[at : at + count].copy_(mine), sums[at : at + count]
        transport.all_reduce([part], placement, out)
        assert torch.equal(out, expected_sum(transport.world_size, count, torch.float32))
        if isinstance(transport, SharedMemoryTransport):  # Gloo adds up where the parts are
            assert torch.equal(part, mine)
        assert sums[at - 1] == sums[at + count] == 7.0
        transport.barrier()
        out.fill_(7.0)


def check_uneven(transport):
    shares = [0] * (transport.world_size - 1) + [5]
    placement = place_shares(5, shares)
    for size in (10, 50_000):
        out = torch.empty(size)
        transport.all_reduce(partials_of(transport, placement, size, torch.float32), placement, out)
        assert torch.equal(out, expected_sum(5, size, torch.float32))


def check_several(transport):
    placement = place(transport.world_size, transport.world_size)
    sizes = [40_000, 3, 70_000]
    parts = [partials_of(transport, placement, size, torch.float32) for size in sizes]
    outs = [torch.empty(size) for size in sizes]
    pending = [transport.begin_all_reduce(partials, placement, out) for partials, out in zip(parts, outs, strict=True)]
    for reduction in pending:
        reduction.advance()
    for reduction, out in zip(pending, outs, strict=True):
        reduction.finish()
        assert torch.equal(out, expected_sum(transport.world_size, len(out), torch.float32))


def check_moves(transport):
    for source in range(transport.world_size):
        tensor = torch.full((3, 2), float(transport.rank))
        transport.broadcast(tensor, source)
        assert tensor.tolist() == [[source, source]] * 3
    everyone = transport.all_gather(torch.tensor([[transport.rank, 9]]))
    assert [tensor.tolist() for tensor in everyone] == [[[rank, 9]] for rank in range(transport.world_size)]
    assert [t.shape for t in transport.all_gather(torch.zeros(0, 3))] == [(0, 3)] * transport.world_size


def check_frames(transport):
    me, last = transport.rank, transport.world_size - 1
    assert transport.any(me == last)
    assert not transport.any(flag=False)
    assert transport.all(flag=True)
    assert transport.all(me != last) is False
    transport.barrier()
    values = transport.all_gather_object({"rank": me, "text": "é" * (me * 3000), "float": 0.1 + me})
    assert [value["rank"] for value in values] == list(range(transport.world_size))
    assert [len(value["text"]) for value in values] == [rank * 3000 for rank in range(transport.world_size)]
    assert values[-1]["float"].hex() == (0.1 + last).hex()
    assert transport.exchange("bytes", b"\0" * me) == [b"\0" * rank for rank in range(transport.world_size)]


def check_disagreement(transport):
    operation, line = ("run.mean", "train.py:88") if transport.rank == 0 else ("step", "train.py:70")
    try:
        transport.exchange(operation, b"", line)
    except UsageError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("start_ranks", "ranks"),
    [
        pytest.param(over_shared_memory, 3, marks=[pytest.mark.ranks, COMPILED]),
        pytest.param(over_gloo, 2, marks=pytest.mark.ranks),
        pytest.param(over_two_nodes, 3, marks=[pytest.mark.ranks, COMPILED]),
        (over_fake, 4),
    ],
    ids=["shared-memory", "gloo", "nodes", "fake"],
)
def test_ranks_at_different_operations_hear_both_lines(start_ranks, ranks):
    for sentence in start_ranks(check_disagreement, ranks):
        assert "rank 0 is at 'run.mean' (train.py:88)" in sentence
        assert re.search(r"(is|are) at 'step' \(train.py:70\)", sentence)


def check_lost(transport):
    if transport.rank == 1:
        raise RuntimeError("this rank is out of order")
    with pytest.raises(PeerLost):
        transport.barrier()


def test_a_lost_peer_is_told_from_ones_own_error_fake():
    with pytest.raises(RuntimeError, match="out of order"):
        FakeWorld(3).run(check_lost)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("join", "nodes"),
    [
        pytest.param(in_shared_memory, (), marks=COMPILED),
        (in_gloo, ()),
        pytest.param(over_nodes, (1, 1), marks=COMPILED),
    ],
)
def test_a_lost_peer_is_told_from_ones_own_error(join, nodes):
    with pytest.raises(RankFailed, match="out of order"):
        run_ranks(join, Started(2, lanes=2, nodes=nodes), check_lost, ())


def check_messages(transport):
    following, before = (transport.rank + 1) % transport.world_size, (transport.rank - 1) % transport.world_size
    sent = [
        transport.send(torch.full((number + 1,), float(10 * transport.rank + number)), following, tag)
        for number, tag in enumerate((1, 2, 1))
    ]
    received = {}
    for number, tag in ((1, 2), (0, 1), (2, 1)):
        out = torch.empty(number + 1)
        transport.receive(out, before, tag)
        received[number] = out.tolist()
    for message in sent:
        message.wait()
    assert received == {number: [10.0 * before + number] * (number + 1) for number in range(3)}


def check_split(transport):
    size = transport.world_size
    part = transport.split([list(range(1, size)), [0]] if size > 1 else [[0]])
    mine = [0] if transport.rank == 0 else list(range(1, size))
    assert (part.rank, part.world_size) == (mine.index(transport.rank), len(mine))
    assert part.all_gather_object(transport.rank) == mine
    value = torch.tensor([float(transport.rank)])
    part.broadcast(value, len(mine) - 1)
    assert value.item() == mine[-1]
    out = torch.empty(20_000)
    part.all_reduce([torch.full((20_000,), float(transport.rank))], place(len(mine), len(mine)), out)
    assert set(out.tolist()) == {float(sum(mine))}
    part.close()
    assert transport.all_gather_object(transport.rank) == list(range(size))


def check_allocated(transport):
    me, size = transport.rank, 100_003
    placement = place(transport.world_size, transport.world_size)
    part = transport.allocate(size, torch.float32, torch.device("cpu"))
    assert (part.shape, part.dtype, part.count_nonzero().item()) == ((size,), torch.float32, 0)
    for _ in range(3):
        part.copy_(lane_value(me, size, torch.float32))
        transport.all_reduce([part], placement, part)
        assert torch.equal(part, expected_sum(transport.world_size, size, torch.float32))
    transport.free(part)
    part.copy_(lane_value(me, size, torch.float32))  # an ordinary tensor now
    transport.all_reduce([part], placement, part)
    assert torch.equal(part, expected_sum(transport.world_size, size, torch.float32))


def check_every_sum(transport):
    """A start of ranks takes longer than all of them."""
    for check in (check_sums, check_sum_in_place, check_part_of_large, check_uneven, check_several, check_allocated):
        check(transport)


@world
def test_a_sum_has_the_bits_of_the_tree_on_one_rank(start_ranks, ranks):
    start_ranks(check_every_sum, ranks)


def check_what_moves(transport):
    for check in (check_moves, check_frames, check_split, *([check_messages] if transport.world_size > 1 else [])):
        check(transport)


@world
def test_tensors_words_and_messages_arrive_also_between_some_of_the_ranks(start_ranks, ranks):
    start_ranks(check_what_moves, ranks)


def check_shared_once(transport):
    once = transport.allocate_once(5000, torch.float32, torch.device("cpu"))
    if transport.rank == 0:
        once.master[7] = 1.0
    transport.barrier()
    assert once.mine[7].item() == once.master[7].item() == 1.0
    assert not once.was_written()
    once.mine[3000] = float(transport.rank)
    transport.barrier()
    assert once.was_written()
    assert (once.mine[3000].item(), once.master[3000].item()) == (transport.rank, 0.0)
    once.forget_writes()
    assert not once.was_written()
    assert once.mine[3000].item() == 0.0
    transport.barrier()
    transport.free(once.master)


@COMPILED
@pytest.mark.ranks
def test_what_a_rank_writes_into_its_view_of_shared_memory_only_it_sees():
    over_shared_memory(check_shared_once, 3)


def check_lines_of_calls(transport):
    out = torch.zeros(3 if transport.rank == 0 else 4)
    if transport.rank == 2:
        transport.broadcast(out, 0)
    else:
        transport.all_reduce([out], place(transport.world_size, transport.world_size), out)


@COMPILED
@pytest.mark.ranks
def test_ranks_with_different_tensor_operations_hear_what_each_of_them_does():
    with pytest.raises(RankFailed) as raised:
        over_shared_memory(check_lines_of_calls, 3)
    sentence = str(raised.value)
    assert "UsageError: The ranks call different operations. " in sentence
    assert "rank 0: all_reduce(sum) of 3 float32 at test_transport.py:" in sentence
    assert "rank 1: all_reduce(sum) of 4 float32 at test_transport.py:" in sentence
    assert "rank 2: broadcast of 16 uint8 from rank 0 at test_transport.py:" in sentence


def tracks_of_a_sum(transport):
    spans.take()
    ones = torch.ones(100_000)
    transport.all_reduce([ones], place(transport.world_size, transport.world_size), torch.empty_like(ones))
    return {track for track, *_ in spans.taken()}


@COMPILED
@pytest.mark.ranks
def test_a_trace_has_a_track_for_each_thread_that_exchanges():
    assert over_two_nodes(tracks_of_a_sum, 4) == [{"waits", "samebits sender", "samebits waiter"}] * 4
