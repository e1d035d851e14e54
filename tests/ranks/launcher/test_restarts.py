"""A run that loses a rank starts all of them again, and ends with the bits of one that lost none."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.launching import Finished, Running, run_script, start, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAINING = """
    import os, signal, sys, time, torch, torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset
    import samebits

    now = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dies = dict(pair.split(":") for pair in os.environ.get("DIES", "").split())

    class Numbers(Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, index):
            return torch.arange(8.0).sin() * index / 100, index % 3

    if dies.get(now) == "early":
        os.kill(os.getpid(), signal.SIGKILL) if os.environ["RANK"] == "1" else time.sleep(60)
    run = samebits.init(seed=1, lanes=6, threads=1)
    if dies.get(now) == "before" and run.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    run.log(started=int(now))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), batch_size=24, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(3):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            if dies.get(now) == str(step.number) and run.rank == 1:
                os.kill(os.getpid(), int(os.environ.get("BY", signal.SIGKILL)))
            if dies.get(now) == f"raises-{step.number}" and run.rank == 1:
                raise ValueError("mine")
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=step.loss)
"""
NAMED = ("--name", "exp1", "--save-every", "1steps", "--snapshots", "off")


def train(place: Path, *options: str, ranks: int = 2, **variables: str) -> Finished:
    # no rank holds the whole state, so none leaves its step's beginning
    return run_script(place, TRAINING, "-n", str(ranks), "--strategy", "zero1", *options, env=variables)


def bits(ended: Finished) -> str:
    return ended.bits


def lines_about_restarts(ended: Finished) -> list[str]:
    return [*ended.losses, *(line for line in ended.err.splitlines() if line.startswith("stop "))]


def steps_in_metrics(folder: Path) -> list[int]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bits(train(tmp_path_factory.mktemp("straight"), ranks=1))


@promise(
    "never-stuck-nothing-left-behind",
    "Under other strategies, and where all ranks are lost, ranks go on from the newest snapshot or state",
    also=[
        "test_ranks_become_fewer_and_go_on_from_memory_with_the_same_bits",
        "test_every_strategy_goes_on_from_memory",
        "test_an_unnamed_run_begins_again_as_often_as_it_helps",
    ],
)
def test_a_named_run_goes_on_from_its_newest_state(tmp_path: Path, undisturbed: str) -> None:
    ended = train(tmp_path, *NAMED, DIES="0:8")
    assert ended.code == 0, ended.err
    assert bits(ended) == undisturbed
    [said] = lines_about_restarts(ended)
    found = re.fullmatch(
        r"LOST rank 1 was killed by signal 9 \(SIGKILL\) in step 8 \(7 done, script\.py:\d+\) back all ranks start again "
        r"\(restart 1 of 3\), from state step-([67]) (1 step is|2 steps are) computed again; lines below may repeat",
        said,
    )
    assert found, said  # the state of step 7 is written while step 8 is computed, and may not be there yet
    assert f"the run resumes in epoch 2, after step {found[1]}" in ended.err
    [folder] = (path.parent for path in (tmp_path / "samebits-runs" / "exp1").glob("*/metrics.jsonl"))
    assert steps_in_metrics(folder) == list(range(1, 16))
    assert ended.err.count(", 6 lanes of ") == 1


def test_an_unnamed_run_begins_again_as_often_as_it_helps(tmp_path: Path, undisturbed: str) -> None:
    ended = train(tmp_path, DIES="0:7 1:4")
    assert ended.code == 0, ended.err
    assert bits(ended) == undisturbed
    first, second = lines_about_restarts(ended)
    assert " back all ranks start again (restart 1 of 3), from the beginning 7 steps are computed again" in first
    assert " in step 4 (3 done, script.py:" in second
    assert " (restart 2 of 3), from the beginning 4 steps are computed again; lines below may repeat" in second
    assert ended.folder is not None
    assert steps_in_metrics(ended.folder) == list(range(1, 16))
    for number in (1, 2):
        assert (ended.folder / f"before-restart-{number}" / "journal" / "rank-00001.ring").exists()


@promise(
    "never-stuck-nothing-left-behind",
    "The same failure twice at one step, and an exception of the script, end a run",
    also=["test_an_exception_of_the_script_stops_the_run_at_once"],
)
def test_the_same_failure_at_the_same_step_stops_the_run(tmp_path: Path) -> None:
    ended = train(tmp_path, DIES="0:3 1:3", BY=str(int(signal.SIGTERM)))
    assert ended.code == 128 + signal.SIGTERM
    _, said = lines_about_restarts(ended)
    assert said.startswith("stop      rank 1 was killed by signal 15 (SIGTERM) in step 3 (2 done) again; ")
    assert ended.err[ended.err.index(said) :].splitlines()[1].startswith("FAILED    rank 1, in step 3 (2 done)")


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that is killed while all start again, before samebits.init, is one more loss: all start again",
)
def test_a_rank_that_is_killed_while_it_starts_again_is_one_more_loss(tmp_path: Path, undisturbed: str) -> None:
    ended = train(tmp_path, DIES="0:3 1:early")
    assert (ended.code, bits(ended)) == (0, undisturbed)
    assert [line for line in lines_about_restarts(ended) if "before the first step" in line]


def test_kills_from_outside_at_one_step_use_restarts_up_and_no_rank(tmp_path: Path, undisturbed: str) -> None:
    ended = train(tmp_path, "--max-restarts", "9", DIES="0:before 1:before 2:3 3:3")
    assert bits(ended) == undisturbed
    told = lines_about_restarts(ended)
    assert [f"all ranks start again (restart {number} of 9)" in line for number, line in enumerate(told, 1)] == [
        True
    ] * 4


def test_an_exception_of_the_script_stops_the_run_at_once(tmp_path: Path) -> None:
    ended = train(tmp_path, "--max-restarts", "5", DIES="0:raises-3")
    assert ended.code == 1
    assert "FAILED    rank 1, in step 3 (2 done)" in ended.err
    assert lines_about_restarts(ended) == []


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "A script that changes RANK or WORLD_SIZE is refused; one that calls `torch.multiprocessing.spawn` "
    "runs under `samebits run -n 1`; `--max-restarts N` restarts a plain script after any failure",
    also=[
        "test_a_rank_that_takes_itself_for_another_is_refused",
        "test_a_script_that_calls_torch_spawn_itself_runs_as_under_python",
    ],
)
@pytest.mark.thorough
def test_a_torchrun_script_starts_again_after_any_failure_and_meets_anew(tmp_path: Path) -> None:
    script = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        store.add("ranks", 1)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise ValueError("once")
        dist.barrier()
        if dist.get_rank() == 0:
            names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
            print(*(os.environ[name] for name in names), int(ones), store.get("ranks").decode())
    """
    ended = run_script(tmp_path, script, "-v", "-n", "2", env={"PET_MAX_RESTARTS": "2"})
    assert ended.code == 0, ended.err
    assert ended.out == "1 2 2 2\n"
    [said] = lines_about_restarts(ended)
    assert "rank 1 failed with ValueError: once (script.py:9) back all ranks start again (restart 1 of 2)" in said
    assert ended.err.count("met through torchrun's environment") == 1
    assert "ValueError: once" in ended.log(1), "the log goes on"


def test_what_is_logged_without_any_step_is_in_the_file_once_after_a_restart(tmp_path: Path) -> None:
    script = """
        import os, samebits
        run = samebits.init()
        run.log(accuracy=0.9)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), 9)
    """
    ended = run_script(tmp_path, script, "-n", "1")
    assert ended.code == 0, ended.err
    assert len(lines_about_restarts(ended)) == 1
    assert ended.folder is not None
    assert (ended.folder / "metrics.jsonl").read_text().count("accuracy") == 1


@promise("never-stuck-nothing-left-behind", "Ctrl-C during a restart leaves nothing")
def test_control_c_during_a_restart_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import os, signal
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
            os._exit(3)
        signal.pause()
    """
    run = start(tmp_path, "-n", "2", "--start-method=spawn", "--max_restarts=3", write_script(tmp_path, script))
    try:
        until(lambda: "LOST " in run.err, "the restart")
        run.process.send_signal(signal.SIGINT)
        ended = run.finish()
        nothing_left(run)
    finally:
        run.clean_up()
    assert ended.code == 128 + signal.SIGINT
    assert lines_about_restarts(ended)[0].startswith("LOST rank 0 ended with exit code 3 back ")
    assert "FAILED" not in ended.err


def nothing_left(run: Running) -> None:
    until(lambda: not run.processes(), "the end of all processes", stretched(1.0))
