"""The backend "samebits" of torch.distributed: its results, its errors, its beginning and end."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samebits.errors import EnvironmentFailure, PeerLost, UsageError
from samebits.testing.ranks import Started, run_ranks
from samebits.torch_backend import CollectiveFailed, CollectiveMisused, CollectivePeerLost
from tests.scripts.collectives import fuzz
from tests.support.launching import run_script, stretched, until
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def begin(folder, **how):
    """This rank's default group."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size, **how)
    return rank, size


def random_collectives(folder, seed, rounds):
    rank, size = begin(folder)
    groups = [(dist.group.WORLD, dist.new_group(backend="gloo"))]
    for ranks in ([0, 1], [size - 1], [size - 1, 0]):
        pair = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
        groups.append(pair if rank in ranks else None)
    fuzz(seed, rounds, groups)
    dist.destroy_process_group()


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Every collective gives the right numbers: random operations, dtypes, sizes from 0, groups, strided "
    "tensors, async or not, compared with Gloo; so do reductions that only Gloo or NCCL accept",
    also=["test_reductions_lists_and_calls_are_those_of_gloo_and_nccl_and_are_shown_as_theirs"],
)
@pytest.mark.parametrize(
    ("ranks", "seed", "rounds"),
    [(3, 1, 3), *(pytest.param(n, s, 6, marks=pytest.mark.thorough) for n, s in ((2, 0), (3, 3), (4, 4)))],
)
def test_every_collective_gives_the_numbers_of_gloo_with_random_arguments(tmp_path, ranks, seed, rounds):
    run_ranks(random_collectives, Started(ranks), str(tmp_path), seed, rounds)


def raised(error_type, call):
    """The text of the error that the call must raise."""
    with pytest.raises(error_type) as caught:
        call()
    assert isinstance(caught.value, dist.DistBackendError)
    return str(caught.value)


def mistakes_of_one_rank(folder):
    begin(folder)
    ones = torch.ones(3)
    for call, words in (
        (lambda: dist.all_reduce(ones.to("meta")), "is on meta"),
        (lambda: dist.all_reduce(ones, dist.ReduceOp.BAND), "no bits"),
        (lambda: dist.all_reduce(ones.bool(), dist.ReduceOp.AVG), "no average"),
        (lambda: dist.reduce(ones.cfloat(), 0, dist.ReduceOp.BOR), "SUM and AVG only"),
        (lambda: dist.all_reduce(ones.int(), dist._make_nccl_premul_sum(2.0)), "PREMUL_SUM"),
        (lambda: dist.all_reduce(ones.to(torch.uint16)), "uint16"),
        (lambda: dist.broadcast(ones, group_src=-1), "no rank -1"),
        (lambda: dist.reduce(ones, group_dst=-1), "no rank -1"),
        (lambda: dist.gather(ones, group_dst=-1), "no rank -1"),
        (lambda: dist.scatter(ones, group_src=-1), "no rank -1"),
        (lambda: dist.broadcast(torch.eye(3).to_sparse(), 0), "to_dense"),
        (lambda: dist.all_to_all_single(ones, ones), "split sizes"),
        (lambda: dist.all_to_all_single(ones, ones, [-1, 4], [-1, 4]), "[-1, 4]"),
        (lambda: dist.all_gather([ones, ones.clone()], torch.ones(2)), "but it has 3"),
        (lambda: dist.group.WORLD.allgather([[ones]], [ones]), "not 1"),
    ):
        assert words in raised(CollectiveMisused, call)
    dist.all_reduce(ones)  # nobody else was involved
    assert ones.tolist() == [2, 2, 2]


@promise(
    "the-backend-samebits-of-torch-distributed",
    "A call that can never be right raises one sentence, and the group keeps working; a tensor that "
    "stands in for another is exchanged or refused",
    also=["test_a_tensor_without_numbers_is_refused"],
)
def test_a_call_that_cannot_be_right_says_so_and_the_group_goes_on(tmp_path):
    run_ranks(mistakes_of_one_rank, Started(2), str(tmp_path))


def all_reduce_of(**kwargs):
    tensor = torch.ones(kwargs.pop("size", 5), dtype=kwargs.pop("dtype", torch.float32))
    return lambda group: dist.all_reduce(tensor, group=group, **kwargs)


def waited(call):
    return lambda group: call(group).wait()


DISAGREEMENTS = {
    "dtype": (all_reduce_of(), all_reduce_of(dtype=torch.int32), "5 float32", "5 int32"),
    "size": (all_reduce_of(), all_reduce_of(size=6), "5 float32", "6 float32"),
    "reduce op": (all_reduce_of(), all_reduce_of(op=dist.ReduceOp.MAX), "all_reduce(sum)", "all_reduce(maximum)"),
    "operation": (all_reduce_of(), dist.barrier, "all_reduce(sum) of 5", "barrier"),
    "under way": (all_reduce_of(), waited(all_reduce_of(size=6, async_op=True)), "5 float32", "6 float32"),
    "large": (all_reduce_of(size=400_000), all_reduce_of(size=400_001), "400000 float32", "400001 float32"),
    "root": (
        lambda group: dist.broadcast(torch.ones(2), 0, group),
        lambda group: dist.broadcast(torch.ones(2), 1, group),
        "from rank 0 at", "from rank 1 at",
    ),
}  # fmt: skip


def disagreements(folder):
    rank, _ = begin(folder)
    for calls in DISAGREEMENTS.values():
        group = dist.new_group()
        text = raised(CollectiveMisused, lambda calls=calls, group=group: calls[rank](group))
        for other in (0, 1):
            told = text.partition(f"rank {other}: ")[2].partition(";")[0]
            assert calls[2 + other] in told, text
            assert f" at {Path(__file__).name}:" in told, text
        assert raised(CollectiveMisused, lambda group=group: dist.all_reduce(torch.ones(1), group=group)) == text
        dist.destroy_process_group(group)
    group = dist.new_group()
    splits = [2, 2] if rank == 0 else [1, 3]
    text = raised(
        CollectiveMisused, lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), splits, [2, 2], group=group)
    )
    assert re.search(r"rank 0 at \S+:\d+ sends 2 elements to rank 1 at \S+:\d+, which expects 1", text), text
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(4), 1, group)
        text = raised(CollectiveMisused, lambda: dist.barrier(group))
    else:
        text = raised(CollectiveMisused, lambda: dist.recv(torch.ones(5), 0, group))
    assert re.search(r"Rank 0 sends 4 float32 with tag 0 at \S+:\d+, but rank 1 receives 5 float32 at \S+:\d+", text), (
        text
    )
    dist.barrier()


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Ranks that call different operations, sizes, dtypes, roots, or calls in a different order all raise, "
    "with both source lines",
    also=["test_swapped_calls_other_shapes_messages_and_groups_raise_on_every_rank_with_both_lines"],
)
def test_ranks_that_call_different_operations_all_raise_and_name_both_source_lines(tmp_path):
    run_ranks(disagreements, Started(2), str(tmp_path))


def calls_that_fail(folder):
    rank, _ = begin(folder)
    given = torch.ones(5)
    calls = [
        lambda group: dist.all_reduce(given, group=group),
        lambda group: dist.broadcast(given, 0, group),
        lambda group: dist.all_gather_into_tensor(torch.empty(10), given, group),
        lambda group: dist.all_gather([torch.empty(5), torch.empty(5)], given, group),
    ]
    for call in calls:
        group = dist.new_group()
        before = group.exchange.num_begun
        raised(CollectiveMisused, lambda call=call, group=group: call(group) if rank else dist.barrier(group))
        assert group.exchange.num_begun == before + 1


def test_a_call_that_fails_counts_among_those_that_a_rank_has_begun(tmp_path):
    run_ranks(calls_that_fail, Started(2), str(tmp_path))


def late(folder):
    rank, _ = begin(folder)
    for patient, group in ((False, dist.new_group()), (True, dist.new_group(timeout=dt.timedelta(seconds=0.2)))):
        if not patient and "timeout" not in inspect.signature(dist.barrier).parameters:
            continue  # torch 2.11
        if rank == 0:
            how = {} if patient else {"timeout": dt.timedelta(seconds=0.2)}
            text = raised(CollectiveFailed, lambda group=group, how=how: dist.barrier(group, **how))
            assert "Rank 1 did not come within the timeout of 0.2 s; rank 0 waits in barrier" in text
        dist.barrier()
        text = raised(CollectiveFailed, lambda group=group: dist.all_reduce(torch.ones(1), group=group))
        assert "Rank 1 did not come within the timeout of 0.2 s" in text
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert not work.is_completed()
        assert "within the timeout of 0.1 s" in raised(CollectiveFailed, lambda: work.wait(dt.timedelta(seconds=0.1)))
        assert work.exception() is not None
    dist.barrier()
    group = dist.new_group(timeout=dt.timedelta(seconds=0.2))
    if rank == 0:
        text = raised(CollectiveFailed, lambda: dist.recv(torch.ones(3), 1, group))
        assert "rank 0 waits for a message of 3 float32 with tag 0 from rank 1 (" in text
    dist.barrier()


def test_a_timeout_names_the_rank_that_is_late(tmp_path):
    run_ranks(late, Started(2), str(tmp_path))


def ends(folder):
    rank, size = begin(folder)
    default, pair = dist.group.WORLD, dist.new_group([0, 1])
    assert (dist.get_backend(), default.name()) == ("samebits", "samebits")
    assert (pair is dist.GroupMember.NON_GROUP_MEMBER) == (rank > 1)
    only = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(alone := torch.ones(2), group=only)
    assert alone.tolist() == [1, 1]
    subgroup, _ = dist.new_subgroups(1)
    dist.barrier(subgroup)
    if rank == 2:
        with pytest.warns(UserWarning, match="does not belong to the given group"):
            assert dist.all_reduce(torch.ones(1), group=pair) is None
    dist.barrier()
    dist.destroy_process_group()
    assert "The default group was destroyed on this rank" in raised(
        CollectiveMisused, lambda: default.allreduce([alone])
    )
    for _ in range(3):  # over the same store, which still has the earlier keys
        begin(folder)
        dist.all_reduce(total := torch.ones(1))
        assert total.item() == size
        dist.destroy_process_group()
    store = dist.PrefixStore("explicit", dist.FileStore(f"{folder}/store", size))
    dist.init_process_group("cpu:samebits", store=store, rank=rank, world_size=size)
    dist.all_reduce(total := torch.ones(1))
    child = os.fork()
    if child == 0:
        text = raised(CollectiveMisused, lambda: dist.all_reduce(total))
        os._exit(0 if "forked from a rank is not a member" in text else 1)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(total)
    assert total.item() == size**2
    if rank == 0:
        dist.destroy_process_group()  # early: the others hear of it
    else:
        text = raised(CollectivePeerLost, dist.barrier)
        assert "Rank 0 left the group while rank" in text


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Groups end and begin again over the same store, threads use their own, sub-groups are agreed on by"
    " their ranks alone",
    also=[
        "test_threads_use_groups_of_their_own_at_the_same_time",
        "test_new_subgroups_of_a_group_are_agreed_on_by_its_ranks_alone",
    ],
)
def test_groups_begin_and_end_and_begin_again(tmp_path):
    run_ranks(ends, Started(3), str(tmp_path))


def dies(folder):
    rank, size = begin(folder)
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    dist.barrier()
    if rank == size - 1:
        Path(folder, "death").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    text = raised(CollectivePeerLost, lambda: [dist.all_reduce(tensor) for _ in range(100)])
    Path(folder, f"told-{rank}").write_text(f"{time.monotonic()} {text}")


@promise(
    "the-backend-samebits-of-torch-distributed",
    "A rank that dies inside a collective, or before it makes a group, is named by all others within 0.2 "
    "s; a timeout names the late rank, and so does `monitored_barrier`",
    also=[
        "test_a_rank_that_dies_before_it_makes_a_group_is_named_at_once",
        "test_a_timeout_names_the_rank_that_is_late",
        "test_reductions_lists_and_calls_are_those_of_gloo_and_nccl_and_are_shown_as_theirs",
    ],
)
def test_a_rank_that_dies_is_named_by_all_others_within_a_fifth_of_a_second(tmp_path):
    with pytest.raises(AssertionError, match="rank 2 failed"):
        run_ranks(dies, Started(3), str(tmp_path))
    death = float((tmp_path / "death").read_text())
    for rank in (0, 1):
        when, _, text = (tmp_path / f"told-{rank}").read_text().partition(" ")
        assert float(when) - death < stretched(0.2)
        assert "Rank 2 ended while rank" in text


def sub_group_that_breaks(folder, how):
    rank, _ = begin(folder)
    pair = dist.new_group([1, 2])
    if rank == 0:
        return
    dist.barrier(group=pair)
    tensor = torch.ones(4)
    if how == "dies":
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        text = raised(CollectivePeerLost, lambda: dist.broadcast(tensor, 2, group=pair))
        words = "Rank 2 ended while rank 1"
    elif how == "deals":
        splits = [1, 3] if rank == 1 else [2, 2]
        text = raised(CollectiveMisused, lambda: dist.all_to_all_single(tensor, torch.ones(4), [2, 2], splits, pair))
        words = "In all_to_all rank 1 at test_torch_backend.py:"
    elif rank == 1:
        dist.send(tensor, 2, group=pair)
        return
    else:
        text = raised(CollectiveMisused, lambda: dist.recv(tensor.long(), 1, group=pair))
        words = "Rank 1 sends 4 float32 with tag 0 at test_torch_backend.py:"
    assert text.startswith(f"The group of ranks [1, 2]: {words}"), text
    Path(folder, f"told-{rank}").touch()


@pytest.mark.parametrize(("how", "told"), [("dies", [1]), ("deals", [1, 2]), ("sends", [2])])
def test_errors_in_a_sub_group_name_ranks_by_their_numbers_in_the_default_group(tmp_path, how, told):
    if how == "dies":
        with pytest.raises(AssertionError, match="rank 2 failed"):
            run_ranks(sub_group_that_breaks, Started(3), str(tmp_path), how)
    else:
        run_ranks(sub_group_that_breaks, Started(3), str(tmp_path), how)
    assert sorted(path.name for path in tmp_path.glob("told-*")) == [f"told-{rank}" for rank in told]


def groups_that_differ(folder, patience_s):
    rank, _ = begin(folder, timeout=dt.timedelta(seconds=patience_s))
    dist.barrier()
    if patience_s > 10:
        ranks = [0, 1] if rank else [0, 1, 2]
        text = raised(CollectiveMisused, lambda: dist.new_group(ranks))
        for name, members in (
            ("rank 0", "[0, 1, 2]"),
            ("ranks 1, 2", "[0, 1]"),
        ):  # also on rank 2, which is not a member
            line = rf"{name}: new_group of \d at {Path(__file__).name}:\d+ for the ranks {re.escape(members)}"
            assert re.search(line, text), text
    elif rank < 2:
        text = raised(CollectiveFailed, lambda: dist.new_group([0, 1, 2]))
        assert "Rank 2 did not come within the timeout of 2 s; rank " in text
        assert " waits in new_group of 3 (" in text
        dist.group.WORLD.get_group_store().set(f"gave up {rank}", "")
    else:  # a rank that lives and does something else
        dist.group.WORLD.get_group_store().wait(["gave up 0", "gave up 1"], dt.timedelta(seconds=25))


@pytest.mark.parametrize("patience_s", [60, 2])
def test_a_group_that_not_all_ranks_mean_or_make_is_an_error_that_names_a_rank(tmp_path, patience_s):
    run_ranks(groups_that_differ, Started(3, timeout_s=30.0), str(tmp_path), patience_s)


def dies_before_it_comes(folder):
    rank, _ = begin(folder)
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    ranks = [0, 2] if rank == 0 else [1, 2]
    text = raised(CollectivePeerLost, lambda: dist.new_group(ranks, use_local_synchronization=True))
    assert text.startswith("Rank 2 ended while this rank was waiting")
    Path(folder, f"noticed-{rank}").write_text(f"{time.monotonic() - began}")


def test_a_rank_that_dies_before_it_makes_a_group_is_named_at_once(tmp_path):
    with pytest.raises(AssertionError, match="rank 2 failed"):
        run_ranks(dies_before_it_comes, Started(3), str(tmp_path))
    noticed = [float((tmp_path / f"noticed-{rank}").read_text()) for rank in (0, 1)]
    assert max(noticed) < stretched(1.0)


def threads(folder):
    rank, size = begin(folder)
    groups = [dist.new_group() for _ in range(3)]
    errors = []

    def work(number):
        try:
            for step in range(30):
                tensor = torch.full((1 + 700 * step,), float(rank + number))
                dist.all_reduce(tensor, group=groups[number])
                assert tensor.eq(sum(range(size)) + size * number).all()
                found = [None] * size
                dist.all_gather_object(found, (number, rank), group=groups[number])
                assert found == [(number, other) for other in range(size)]
        except BaseException as error:
            errors.append(error)
            raise

    started = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not errors


def test_threads_use_groups_of_their_own_at_the_same_time(tmp_path):
    run_ranks(threads, Started(2), str(tmp_path))


def direct(folder):
    """torch's shorter forms, on the group itself."""
    rank, _ = begin(folder)
    group = dist.group.WORLD
    group.allreduce(total := torch.ones(2), dist.ReduceOp.SUM).wait()
    group.broadcast(shown := torch.full((2,), float(rank)), 1).wait()
    group.reduce(summed := torch.ones(2), 0).wait()
    group.barrier().wait()
    assert (total.tolist(), shown.tolist(), summed[0].item()) == ([2, 2], [1, 1], 2 - rank)
    work = group.allreduce([torch.ones(3)])
    assert work.get_future().wait()[0].tolist() == [2, 2, 2]
    assert work.is_completed() and work.is_success() and work.result()[0].tolist() == [2, 2, 2]
    followed = group.allreduce([torch.ones(3)]).get_future().then(lambda future: future.value()[0] + 1)
    assert followed.wait().tolist() == [3, 3, 3]
    group.allreduce([torch.ones(70_000)])  # nobody keeps the work
    sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,), check_invariants=True)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1, 1, 2, 0]
    other = torch.sparse_coo_tensor([[0]], [1.0], (3 + rank,), check_invariants=True)
    assert "(3,) on rank 0, (4,) on rank 1" in raised(CollectiveMisused, lambda: dist.all_reduce(other))
    assert "Use dist.new_group for each part" in raised(CollectiveMisused, lambda: group.split_group([0, 1]))
    if hasattr(dist, "set_timeout"):  # from torch 2.14 or 2.15 on; before, torch's own warns and leaves it
        dist.set_timeout(dt.timedelta(seconds=40), group)
        assert group.exchange.patience == dt.timedelta(seconds=40)
    else:
        with pytest.warns(UserWarning, match="Set timeout is now only supported for either nccl or gloo"):
            dist.distributed_c10d._set_pg_timeout(dt.timedelta(seconds=50), group)
    group.monitored_barrier(dt.timedelta(seconds=50))
    group.set_timeout(dt.timedelta(seconds=50))
    dist.all_reduce(total)
    assert total.tolist() == [4, 4]


def test_a_group_takes_torchs_shorter_forms_and_its_works_have_futures(tmp_path):
    run_ranks(direct, Started(2), str(tmp_path))


def test_errors_are_of_torchs_tree_and_of_ours():
    assert issubclass(CollectiveMisused, UsageError)
    assert issubclass(CollectivePeerLost, PeerLost)
    assert issubclass(CollectiveFailed, EnvironmentFailure)
    assert all(
        issubclass(error, dist.DistBackendError) and issubclass(error, RuntimeError)
        for error in (CollectiveMisused, CollectivePeerLost, CollectiveFailed)
    )


SCRIPT = """
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    import samebits.torch_backend

    def main(rank=-1, path=None):
        how = {} if path is None else {"init_method": f"file://{path}", "rank": rank, "world_size": 2}
        for _ in range(2):
            dist.init_process_group("samebits", **how)
            dist.all_reduce(total := torch.ones(1))
            assert total.item() == dist.get_world_size() == 2
            dist.destroy_process_group()
        print("met")
"""


def test_ranks_meet_under_samebits_run_and_a_mistake_is_one_sentence(tmp_path):
    mistake = """
    main()
    dist.init_process_group("samebits")
    dist.all_reduce(torch.ones(5 + dist.get_rank()))
    """
    ended = run_script(tmp_path, SCRIPT + mistake, "-q", "-n", "2")
    assert (ended.code, ended.out) == (2, "met\n"), ended.err
    assert "rank 0: all_reduce(sum) of 5 float32 at script.py:" in ended.err
    assert "Traceback" not in ended.err


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Ranks meet under `samebits run`, torchrun and `mp.spawn`",
    also=["test_a_run_goes_on_over_gloo_with_the_same_bits_and_says_so_once"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("way", ["torchrun", "spawn"])
def test_ranks_meet_under_other_launchers_and_leave_nothing_in_shared_memory(tmp_path, way):
    script = tmp_path / "script.py"
    last = f"mp.spawn(main, args=({str(tmp_path / 'meeting')!r},), nprocs=2)" if way == "spawn" else "main()"
    script.write_text(textwrap.dedent(SCRIPT) + f"\nif __name__ == '__main__':\n    {last}\n")
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"]
    command = [sys.executable] if way == "spawn" else launcher
    before = set(Path("/dev/shm").iterdir())
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert (done.returncode, done.stdout.count("met")) == (0, 2), done.stderr  # two ranks may share a line
    new = [path for path in set(Path("/dev/shm").iterdir()) - before if "samebits" in path.name]
    until(
        lambda: not any(path.exists() for path in new), f"no {new}"
    )  # a test beside this one may hold some for a moment
