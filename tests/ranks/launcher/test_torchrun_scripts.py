"""Scripts written for torchrun train one job over all ranks, unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts.torchrun_texts import ACCELERATE, DATA, DDP, FABRIC
from tests.support.launching import Finished, listening_addresses, run_script, start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    "trainer", [DDP, ACCELERATE, pytest.param(FABRIC, marks=pytest.mark.thorough)], ids=["ddp", "accelerate", "fabric"]
)
def test_a_torchrun_script_trains_one_job_over_all_ranks(tmp_path: Path, trainer: str) -> None:
    ended = run_script(tmp_path, DATA + trainer, "--nproc_per_node=2", "--master_port", "29511", "--standalone")
    assert ended.code == 0, ended.err
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["world"] for rank in told] == [2, 2]
    assert told[0]["weights"] == told[1]["weights"]
    assert all(rank["last"] < rank["first"] for rank in told)
    assert told[0]["first"] != told[1]["first"], "each rank has samples of its own"
    assert "never joined" not in ended.err
    assert ended.err.count("without effect on one node: ") == 1


@promise(
    "never-a-silent-wrong-gradient",
    "Plain scripts whose ranks never meet, or each make a group of one, are named",
    also=["test_ranks_that_each_make_a_group_of_one_are_named_once_each"],
)
def test_ranks_that_never_meet_are_named_loudly(tmp_path: Path) -> None:
    ended = run_script(tmp_path, "print('training')", "-n", "2", "--start-method=spawn")
    assert ended.code == 0
    assert "warning   2 ranks ran, but they never joined: each trained alone." in ended.err


def test_a_group_of_one_rank_is_no_meeting(tmp_path: Path) -> None:
    script = """
        import os, torch.distributed as dist
        port = 29600 + int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0, ended.err
    assert "2 ranks ran, but they never joined" in ended.err


def test_ranks_that_meet_in_their_own_way_are_not_called_alone(tmp_path: Path) -> None:
    script = """
        import os, torch.distributed as dist
        dist.init_process_group(
            "gloo", init_method=f"file://{os.getcwd()}/meeting", rank=int(os.environ["RANK"]), world_size=2
        )
        dist.barrier()
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0, ended.err
    assert "never joined" not in ended.err


def test_nobody_outside_this_machine_can_connect_to_a_run(tmp_path: Path) -> None:
    script = """
        import torch, torch.distributed as dist, signal
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        print("met", flush=True)
        signal.pause()
    """
    run = start(tmp_path, "-n", "2", write_script(tmp_path, script))
    try:
        run.wait_for("met")
        until(lambda: listening_addresses(run.processes()) != set(), "a listener")
        assert listening_addresses(run.processes()) == {"0100007F"}
    finally:
        run.process.terminate()
        assert run.finish().code == 143
    assert run.processes() == []


@pytest.mark.thorough
def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(start(tmp_path / name, "-n", "2", write_script(tmp_path / name, DATA + DDP)))
    for ended in [run.finish() for run in runs]:
        assert ended.code == 0, ended.err
        assert ended.folder is not None
        assert {path.name for path in ended.folder.parents[1].glob("rank-*.json")} == {"rank-0.json", "rank-1.json"}


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "Torchrun's environment is complete, and `PET_` variables stand for options that are not given",
    also=[
        "test_pet_variables_stand_for_options_that_are_not_given",
        "test_a_mistake_is_a_problem_and_a_fix_and_starts_nothing",
    ],
)
def test_torchruns_environment_is_complete(tmp_path: Path) -> None:
    script = """
        import json, os
        with open(f"{os.environ['RANK']}.json", "w") as file:
            json.dump(dict(os.environ), file)
    """
    own = {"LT_DEVICES": "mine", "OPENBLAS_NUM_THREADS": "7"}
    ended = run_script(tmp_path, script, "-n", "2", "--threads", "3", "--start-method=spawn", env=own)
    assert ended.code == 0
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [second[name] for name in names] == ["1", "1", "2", "2"]
    assert (first["MASTER_ADDR"], first["TORCHELASTIC_USE_AGENT_STORE"]) == ("127.0.0.1", "False")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (first["OMP_NUM_THREADS"], first["PYTHONHASHSEED"], first["GLOO_SOCKET_IFNAME"]) == ("3", "0", "lo")
    assert first["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0", "or a thread of C++ would call our store while Python ends"
    assert {name: first[name] for name in own} == own, "what a person set is kept"


@pytest.mark.thorough
@pytest.mark.parametrize("start_as", [(), ("--start-method=spawn",)], ids=["fork", "fresh"])
def test_a_rank_looks_like_a_plain_python_process(tmp_path: Path, start_as: tuple[str, ...]) -> None:
    script = """
        import os, pickle, random, signal, sys, threading
        import neighbour, numpy, torch
        class Mine: pass
        assert pickle.loads(pickle.dumps(Mine())).__class__ is Mine
        assert sys.modules["__main__"].Mine is Mine and __name__ == "__main__" and __spec__ is None
        assert __file__ == os.path.abspath("folder/script.py") and sys.argv == ["folder/script.py", "--lr", "0.1"]
        assert threading.current_thread() is threading.main_thread() and threading.active_count() == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL and signal.set_wakeup_fd(-1) == -1
        assert torch.get_num_threads() == 2
        print(random.random(), numpy.random.rand(), torch.rand(1).item(), hash("text"))
    """
    (tmp_path / "folder").mkdir()
    write_script(tmp_path / "folder", "", "neighbour.py")
    path = "folder/" + write_script(tmp_path / "folder", script)
    ended = start(tmp_path, "-n", "2", "--threads", "2", *start_as, path, "--lr", "0.1").finish()
    assert ended.code == 0, ended.err
    drawn = [ended.log(rank).split() for rank in range(2)]
    same = [mine == theirs for mine, theirs in zip(*drawn, strict=True)]
    assert same == [False, False, False, True], (
        "each rank has random numbers of its own, and hashes texts as the others do"
    )


def test_a_module_runs_as_python_m_would_run_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    write_script(package, "", "__init__.py")
    write_script(
        package, "from . import part; import sys; print(__spec__.name, __package__, sys.argv[1:])", "__main__.py"
    )
    write_script(package, "", "part.py")
    ended = start(tmp_path, "-n", "1", "--start-method=spawn", "-m", "package", "-n", "7").finish()
    assert ended.out == "package.__main__ package ['-n', '7']\n", ended.err


def test_an_unnamed_run_leaves_private_files(tmp_path: Path) -> None:
    def others_may(ended: Finished) -> list[Path]:
        assert ended.folder is not None
        return [path for path in (ended.folder, *ended.folder.rglob("*")) if path.stat().st_mode & 0o077]

    ended = run_script(tmp_path, "print('x')", "-n", "2", "--start-method=spawn", "--name", "mine")
    assert ended.folder == tmp_path / "samebits-runs" / "mine"
    assert others_may(ended) == []
    again = start(tmp_path, "--name", "mine", "script.py").finish()
    assert (again.code, again.err.count("\n")) == (2, 2)
    assert again.err.startswith("error: A run named mine already exists")
