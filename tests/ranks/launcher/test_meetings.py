"""Scripts that meet in their own way: every init_method, twice, with stores, two jobs at once; and mistakes at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.launching import run_script, start, start_python, stretched, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

MEETINGS = """
    import inspect, os, pickle, sys
    import torch, torch.distributed as dist

    def meet(expected, /, **how):
        dist.init_process_group("gloo", **how)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size() == expected
        dist.destroy_process_group()

    def main(rank, world_size):
        assert list(inspect.signature(dist.init_process_group).parameters)[:3] == ["backend", "init_method", "timeout"]
        assert "default distributed process group" in dist.init_process_group.__doc__
        assert pickle.loads(pickle.dumps(dist.init_process_group)) is dist.init_process_group
        both = {"rank": rank, "world_size": world_size}
        path = os.path.abspath("meeting")
        for how in (
            {}, {"init_method": "env://", **both}, {"init_method": "tcp://127.0.0.1:29500", **both},
            {"init_method": "tcp://10.1.1.20:23456", **both}, {"init_method": f"file://{path}", **both},
            {"init_method": f"tcp://localhost:29501?rank={rank}&world_size={world_size}"},
        ):
            meet(world_size, **how)
            meet(world_size, **how)
        meet(1, init_method=f"file://{path}-{rank}", rank=0, world_size=1)
        if rank == 0:
            meet(1, init_method="tcp://127.0.0.1:29502", rank=0, world_size=1)
        meet(world_size, init_method="tcp://127.0.0.1:29502", **both)
        meet(1, store=dist.HashStore(), rank=0, world_size=1)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, world_size, rank == 0)
        assert isinstance(store, dist.TCPStore)
        if rank == 0:
            store.set("key", "value")
        store.wait(["key"])
        assert store.get("key") == b"value"
        assert store.add("count", 1) in (1, 2)
        file_store = dist.FileStore(os.path.abspath("store"), world_size)
        file_store.set(f"from {rank}", "here")
        file_store.wait([f"from {1 - rank}"])
        own = dist.TCPStore("127.0.0.1", 0, 1, True)
        own.set("mine", "1")
        assert own.get("mine") == b"1" and own.port != port
        del os.environ["MASTER_PORT"]
        meet(world_size)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
        meet(world_size, **both)
        os.environ["MASTER_PORT"] = str(12000 + rank)
        meet(1, rank=0, world_size=1)
        print("all met")

    if "SAMEBITS_RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        import samebits
        samebits.spawn(main, args=(2,))
"""


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "`env://`, `tcp://`, `file://`, a changed `MASTER_PORT`, `TCPStore` and `FileStore` work, for "
    "processes that ranks start too, and two jobs with the same port do not meet",
    also=[
        "test_compare_set_writes_only_over_what_was_expected",
        "test_processes_that_ranks_start_meet_at_master_port",
        "test_two_jobs_at_once_with_the_same_port_do_not_meet",
    ],
)
@pytest.mark.parametrize("way", ["run", *(pytest.param(way, marks=pytest.mark.thorough) for way in ("fresh", "spawn"))])
def test_every_way_to_meet_works_twice_and_stores_work(tmp_path: Path, way: str) -> None:
    script = write_script(tmp_path, MEETINGS)
    options = ("-n", "2", *(["--start-method=spawn"] if way == "fresh" else []))
    ended = (start_python(tmp_path, script) if way == "spawn" else start(tmp_path, *options, script)).finish()
    assert ended.code == 0, ended.err
    assert ended.out == "all met\n"


@pytest.mark.parametrize(
    ("variables", "call"),
    [
        ("RANK='0', WORLD_SIZE='1', MASTER_PORT=str(29600 + rank)", "dist.init_process_group('gloo')"),
        pytest.param("RANK='0'", "dist.init_device_mesh('cpu', (2,))", marks=pytest.mark.thorough),
        pytest.param(
            "WORLD_SIZE='1', LOCAL_WORLD_SIZE='1', RANK='0', LOCAL_RANK='0'",
            "samebits.init()",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_rank_that_takes_itself_for_another_is_refused(tmp_path: Path, variables: str, call: str) -> None:
    script = f"""
        import os, samebits, torch.distributed as dist
        rank = int(os.environ["RANK"])
        os.environ.update({variables})
        {call}
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 2, ended.err
    assert "The script has set " in ended.err and " of 2.\n" in ended.err


def test_ranks_that_each_make_a_group_of_one_are_named_once_each(tmp_path: Path) -> None:
    script = """
        import os, torch.distributed as dist
        for number in range(2):
            dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/own-{number}", rank=0, world_size=1)
            dist.destroy_process_group()
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0, ended.err
    assert all(ended.err.count(f"rank {rank} of 2 makes a group of one rank") == 1 for rank in range(2)), ended.err


def test_two_jobs_at_once_with_the_same_port_do_not_meet(tmp_path: Path) -> None:
    script = """
        import os, sys, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=2)
        job = torch.tensor([float(sys.argv[1])])
        for _ in range(20):
            dist.all_reduce(job, dist.ReduceOp.MAX)
        print(int(job))
    """
    runs = []
    for job in ("1", "2"):
        (tmp_path / job).mkdir()
        runs.append(start(tmp_path / job, "-n", "2", write_script(tmp_path / job, script), job))
    ended = [run.finish() for run in runs]
    assert [(one.code, one.out) for one in ended] == [(0, "1\n"), (0, "2\n")], [one.err for one in ended]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("dist.init_process_group('gloo', rank=int(os.environ['RANK']), world_size=4)", "waits for 4 ranks, but 2 were started."),
        ("dist.init_process_group('gloo', rank=0, world_size=2)", "was called in rank 1, so the ranks would wait"),
        pytest.param("dist.init_process_group('nccl')", 'Use init_process_group("gloo").', marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_a_call_that_would_block_ends_the_run_with_one_sentence(tmp_path: Path, call: str, sentence: str) -> None:
    began = time.monotonic()
    ended = run_script(tmp_path, f"import os, torch.distributed as dist\n{call}", "-q", "-n", "2")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("FAILED    rank ")
    assert sentence in ended.err
    assert ended.err.count("\n  help  ") == 1
    assert "Traceback" not in ended.err
    assert time.monotonic() - began < stretched(10.0)


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "Scripts for torch.distributed.launch, plain DDP, Accelerate and Lightning Fabric run unchanged, as"
    " one job over all ranks",
    also=["test_a_torchrun_script_trains_one_job_over_all_ranks"],
)
def test_a_script_for_torch_distributed_launch_runs_unchanged(tmp_path: Path) -> None:
    script = """
        import argparse, os
        import torch, torch.distributed as dist
        parser = argparse.ArgumentParser()
        parser.add_argument('--local_rank', default=-1, type=int, help='node rank for distributed training')
        parser.add_argument('--lr', type=float)
        args = parser.parse_args()
        dist.init_process_group(backend='gloo', init_method='env://')
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        assert args.local_rank == dist.get_rank() == int(os.environ['LOCAL_RANK'])
        print(args.local_rank, args.lr)
    """
    ended = run_script(tmp_path, script, "--nproc_per_node=2", args=("--lr", "0.1"))
    assert ended.code == 0, ended.err
    assert ended.out == "0 0.1\n"
    assert "1 0.1" in ended.log(1)


@pytest.mark.thorough
def test_a_script_without_local_rank_gets_it_only_with_no_use_env(tmp_path: Path) -> None:
    script = "import sys; print(sys.argv[1:])"
    shown = [
        run_script(place, script, "-q", "-n", "1", "--start-method=spawn", *option, args=("--lr", "1")).out
        for number, option in enumerate(((), ("--no_use_env",), ("--use-env",)))
        if (place := tmp_path / str(number)).mkdir() is None
    ]
    assert shown == ["['--lr', '1']\n", "['--local-rank=0', '--lr', '1']\n", "['--lr', '1']\n"]


@pytest.mark.thorough
def test_a_script_that_calls_torch_spawn_itself_runs_as_under_python(tmp_path: Path) -> None:
    script = """
        import os, socket, torch, torch.distributed as dist, torch.multiprocessing as mp
        def example(rank, world_size, port):
            assert "RANK" not in os.environ and "SAMEBITS_RANK" not in os.environ
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
            total = torch.ones(1)
            dist.all_reduce(total)
            os.write(1, b"total %d\\n" % total)  # whole lines, from two processes
            dist.destroy_process_group()
        if __name__ == "__main__":
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            mp.spawn(example, args=(2, port), nprocs=2)
            assert os.environ["RANK"] == "0"
    """
    ended = run_script(tmp_path, script, "-n", "1")
    assert ended.code == 0, ended.err
    assert ended.out == "total 2\n" * 2
    assert "starts its own processes" not in ended.err


LIBRARY = """
    import torch.distributed as dist

    def wrapped(original):
        def init_process_group(*args, **kwargs):
            return original(*args, **kwargs)
        return init_process_group

    dist.init_process_group = dist.distributed_c10d.init_process_group = wrapped(dist.init_process_group)
"""


@pytest.mark.thorough
def test_scripts_meet_where_a_library_was_there_before_and_takes_any_arguments(tmp_path):
    (tmp_path / "site").mkdir()
    write_script(tmp_path / "site", LIBRARY, "sitecustomize.py")
    script = write_script(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo", "tcp://10.1.1.20:23456", rank=int(os.environ["RANK"]), world_size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        print(int(total))
        """,
    )
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    ended = start(tmp_path, "-n", "2", script, env={"PYTHONPATH": path}, is_cold=True).finish()
    assert ended.code == 0, ended.err
    assert "2" in ended.out
