"""Ranks that start again go on from the state that the run keeps in memory: the same bits, little computed again."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script, start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

EVERY = 2

TRAIN = """
    import json, os, signal, sys, time, torch, torch.nn.functional as F
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    dies = dict(pair.split(":") for pair in os.environ.get("DIES", "").split())
    dies_at = int(dies.get(os.environ["TORCHELASTIC_RESTART_COUNT"], 0))
    kept = Path((json.loads(os.environ["SAMEBITS_RANK"])["snapshots"] or {"folder": "nowhere"})["folder"]) / "run-1"


    def here(step):
        \"\"\"End this rank by SIGKILL when it is time, and a snapshot of the last two steps is there.\"\"\"
        if not dies_at or step < dies_at or run.rank != run.world_size - 1:
            return
        steps = [int(path.name[5:]) for path in kept.glob("step-*")] if kept.is_dir() else []
        if "AT_ONCE" in os.environ or max(steps, default=-9) >= step - 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)


    run = samebits.init(seed=3, threads=1)
    x, y = torch.randn(100, 8), torch.randint(0, 3, (100,))
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    run.state.best = 9.0
    for epoch in run.epochs(4):
        run.log(began=epoch)
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            here(step.number)
            optimizer.step()
            optimizer.zero_grad()
            run.state.best = min(run.state.best, float(step.loss))
            run.log(loss=step.loss)
        scheduler.step()
    run.print("best", run.state.best)
"""
STEPS = 36


def bits(ended: Finished) -> str:
    return ended.bits


def restarts(ended: Finished) -> list[dict[str, object]]:
    assert ended.folder is not None
    record = ended.folder / "restarts.jsonl"
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def lines_of_metrics(ended: Finished) -> list[tuple[int, str]]:
    assert ended.folder is not None
    lines = [json.loads(line) for line in (ended.folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], "began" if "began" in line else "loss") for line in lines]


EACH_ONCE = [
    line
    for epoch in range(4)
    for line in [(9 * epoch, "began"), *((9 * epoch + step, "loss") for step in range(1, 10))]
]


def kept_folders(launcher: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"samebits-kept-{launcher}-*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_script(tmp_path_factory.mktemp("straight"), TRAIN, "-n", "1", "--lanes", "3")


def test_ranks_become_fewer_and_go_on_from_memory_with_the_same_bits(tmp_path: Path, undisturbed: Finished) -> None:
    options = ("-n", "3", "--lanes", "3", "--strategy", "zero1", "--shrink", "--snapshots", f"{EVERY}steps")
    run = start(tmp_path, *options, write_script(tmp_path, TRAIN), env={"DIES": "0:6 1:20"})
    ended = run.finish()
    assert bits(ended) == bits(undisturbed)
    assert ended.out == undisturbed.out
    assert lines_of_metrics(ended) == lines_of_metrics(undisturbed) == EACH_ONCE
    told = restarts(ended)
    assert [one["ranks"] for one in told] == [2, 1]
    assert all(one["in_memory"] and 0 < int(str(one["steps_again"])) <= EVERY for one in told)
    first, second = ended.losses
    assert re.search(
        r"rank 2 was killed .* back 2 ranks, one less, start again \(restart 1 of 3\), after step \d+, kept in memory "
        r"\d steps? (is|are) computed again; lines below may repeat$",
        first,
    )
    assert " back 1 rank, one less, starts again (restart 2 of 3), after step " in second
    assert not kept_folders(run.process.pid)


def test_a_script_that_carries_a_variable_goes_on_and_says_without_what(tmp_path: Path) -> None:
    carrying = TRAIN.replace(
        "run.log(loss=step.loss)",
        "total += float(step.loss); run.log(loss=step.loss); optimizer.param_groups[0]['lr'] *= 1 if total < 1e9 else 0",
    )
    carrying = carrying.replace("run.state.best = 9.0", "run.state.best, total = 9.0, 0.0")
    ended = run_script(tmp_path, carrying, "-n", "1", "--lanes", "3", "--snapshots", "1steps", env={"DIES": "0:6"})
    [told] = restarts(ended)
    assert told["in_memory"]
    assert lines_of_metrics(ended) == EACH_ONCE
    assert re.search(r"^bits +\w{12} +of this run alone.*\nresumed +without total", ended.err, re.MULTILINE)
    assert re.search(r"no state holds total, ", ended.err)
    assert "the run has resumed without total, " in ended.err


@promise(
    "never-stuck-nothing-left-behind",
    "Under `--recover exact` ranks begin at the beginning where something is held by no state; `off` ends "
    "the run; an unnamed run started again by hand begins at its beginning",
    also=["test_an_unnamed_run_started_again_by_hand_begins_at_its_beginning"],
)
@pytest.mark.thorough
def test_under_recover_exact_it_begins_at_the_beginning_and_has_the_undisturbed_bits(tmp_path: Path) -> None:
    carrying = TRAIN.replace("run.log(loss=step.loss)", "run.log(loss=step.loss); rate *= 0.9")
    carrying = carrying.replace("run.state.best = 9.0", "run.state.best, rate = 9.0, 0.1")
    carrying = carrying.replace("optimizer.step()", "optimizer.param_groups[0]['lr'] = rate; optimizer.step()")
    assert carrying.count("= rate") == 1
    ended = {}
    # Alone, and behind its update, a rank makes this step again.
    behind = carrying.replace("here(step.number)", "").replace("rate *= 0.9", "rate *= 0.9; here(step.number)")
    for recover, dies in (("auto", ""), ("auto", "0:6"), ("exact", "0:6"), ("off", "0:6")):
        (place := tmp_path / f"{recover}{dies[:1]}").mkdir()
        is_alone = (recover, dies) == ("auto", "0:6")
        options = ("-n", "1" if is_alone else "2", "--lanes", "4", "--recover", recover)
        options += ("--snapshots", "1steps") if recover != "off" else ()
        ended[recover, dies] = run_script(
            place,
            behind if is_alone else carrying,
            *options,
            env={"DIES": dies} | ({"AT_ONCE": "1"} if recover == "off" else {}),
        )
    exact, resumed, off = ended["exact", "0:6"], ended["auto", "0:6"], ended["off", "0:6"]
    assert bits(exact) == bits(ended["auto", ""])
    assert re.search(r"^bits +\w{12}   with 4 lanes", exact.err, re.MULTILINE)
    assert "(restart 1 of 3), from the beginning (no state holds rate)\n" in exact.err
    [told] = restarts(exact)
    assert (told["step"], told["in_memory"]) == (None, False)
    assert int(str(told["steps_again"])) >= 6
    assert (resumed.code, "is computed again with another rate than the first time" in resumed.err) == (2, True)
    assert off.code == 137
    assert "restart 1" not in off.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ("-n", "2", "--strategy", "zero1"),
        ("-n", "2", "--strategy", "model_parallel"),
        ("-n", "2", "--strategy", "pipeline"),
        ("-n", "1", "--strategy", "single"),
        ("-n", "1", "--name", "exp1", "--save-every", "7steps"),
    ],
    ids=["zero1", "model_parallel", "pipeline", "single", "named"],
)
def test_every_strategy_goes_on_from_memory(tmp_path: Path, undisturbed: Finished, options: tuple[str, ...]) -> None:
    ended = run_script(
        tmp_path, TRAIN, *options, "--lanes", "3", "--snapshots", f"{EVERY}steps", env={"DIES": "0:6 1:25"}
    )
    if "--name" in options:
        [folder] = {path.parent for path in (tmp_path / "samebits-runs" / "exp1").glob("*/metrics.jsonl")}
        ended = Finished(ended.code, ended.out, ended.err, folder)
    assert bits(ended) == bits(undisturbed)
    assert ended.out == undisturbed.out
    assert lines_of_metrics(ended) == EACH_ONCE
    told = restarts(ended)
    assert len(told) == 2
    assert all(one["in_memory"] and 0 < int(str(one["steps_again"])) <= EVERY for one in told)


@pytest.mark.thorough
def test_a_rank_lost_in_a_sum_over_lanes_costs_the_steps_since_the_newest_snapshot(
    tmp_path: Path, undisturbed: Finished
) -> None:
    summed = TRAIN.replace(
        "step.backward(lambda batch: ", "made = []; step.backward(lambda batch: made.append(batch[0].sum()) or "
    )
    summed = summed.replace("here(step.number)", "here(step.number); run.lane_sum(made)")
    options = ("-n", "2", "--lanes", "3", "--snapshots", f"{EVERY}steps")
    ended = run_script(tmp_path, summed, *options, env={"DIES": "0:6"})
    assert (bits(ended), ended.out) == (bits(undisturbed), undisturbed.out)
    assert lines_of_metrics(ended) == EACH_ONCE
    [told] = restarts(ended)
    assert told["in_memory"]
    assert 0 < int(str(told["steps_again"])) <= EVERY


@pytest.mark.thorough
def test_replicas_of_one_rank_go_on_from_memory(tmp_path: Path) -> None:
    (tmp_path / "straight").mkdir()
    (tmp_path / "killed").mkdir()
    text = TRAIN.replace("nn.Dropout(0.3)", "nn.Identity()")  # replicas draw from one generator in any order
    straight = run_script(tmp_path / "straight", text, "-n", "2", "--strategy", "dp")
    options = ("-n", "2", "--strategy", "dp", "--snapshots", f"{EVERY}steps")
    ended = run_script(tmp_path / "killed", text, *options, env={"DIES": "0:6"})
    assert bits(ended) == bits(straight)
    assert lines_of_metrics(ended) == EACH_ONCE
    assert [one["in_memory"] for one in restarts(ended)] == [True]


@pytest.mark.thorough
def test_ranks_that_do_not_wait_for_each_other_go_on_from_an_epochs_end(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        TRAIN.replace(">= step - 2", ">= 9"),
        *("-n", "2", "--strategy", "hogwild", "--snapshots", "2steps"),
        env={"DIES": "0:12"},
    )
    assert ended.code == 0, ended.err
    assert lines_of_metrics(ended) == EACH_ONCE
    [told] = restarts(ended)
    assert told["in_memory"]
    assert int(str(told["step"])) % 9 == 0


@promise(
    "never-stuck-nothing-left-behind",
    "After a kill, what the body of `run.epochs` changes is not changed twice",
    also=["test_killed_ranks.py::test_what_a_body_changes_before_its_steps_is_not_changed_twice"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_what_a_body_changes_before_its_steps_is_not_changed_twice(tmp_path: Path, strategy: str) -> None:
    change = "scheduler.step(); [one.detach().mul_(0.9) for one in model.parameters()]"
    text = TRAIN.replace("run.log(began=epoch)", f"run.log(began=epoch); {change}")
    (tmp_path / "straight").mkdir()
    (tmp_path / "killed").mkdir()
    straight = run_script(tmp_path / "straight", text, "-n", "1", "--lanes", "2")
    options = ("-n", "2", "--lanes", "2", "--strategy", strategy, "--snapshots", f"{EVERY}steps", "--shrink")
    ended = run_script(tmp_path / "killed", text, *options, env={"DIES": "0:12"})
    assert bits(ended) == bits(straight)
    [told] = restarts(ended)
    assert told["in_memory"]


@pytest.mark.thorough
def test_an_unnamed_run_started_again_by_hand_begins_at_its_beginning(tmp_path: Path, undisturbed: Finished) -> None:
    options = ("-n", "1", "--lanes", "3", "--snapshots", "1steps", "--max-restarts", "1")
    assert run_script(tmp_path, TRAIN, *options, env={"DIES": "0:6 1:9"}).code == 128 + signal.SIGKILL
    for folder in (tmp_path / "samebits-runs").glob("*"):
        folder.rename(tmp_path / folder.name)
    ended = run_script(tmp_path, TRAIN, *options)
    assert bits(ended) == bits(undisturbed)
    assert "resumes" not in ended.err
    assert "4 epochs, 36 steps" in ended.err


@pytest.mark.thorough
def test_a_killed_launcher_leaves_nothing_in_memory(tmp_path: Path) -> None:
    waiting = TRAIN.replace("time.sleep(0.1)", "print('waits', flush=True); time.sleep(600)")
    options = ("-n", "1", "--snapshots", "1steps")
    run = start(
        tmp_path, *options, write_script(tmp_path, waiting.replace(">= step - 2", ">= 99")), env={"DIES": "0:9"}
    )
    try:
        run.wait_for("waits")
        until(lambda: any(path.glob("run-1/step-*") for path in kept_folders(run.process.pid)), "a snapshot")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        until(lambda: not run.processes(), "the end of all processes")
    finally:
        run.clean_up()
    until(lambda: not kept_folders(run.process.pid), "an empty shared memory")
