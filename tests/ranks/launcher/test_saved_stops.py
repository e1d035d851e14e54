"""A signal to a run that saves by itself: it is saved where it is, ends with 128 + n, and the same command goes on."""

import hashlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.launching import Running, start, start_python, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, sys, time, torch, torch.nn.functional as F
    from pathlib import Path
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    def hold(place):
        if os.environ.get("HOLDS_AT") == place:
            run.print("holding", flush=True)
            while not Path("go").exists():
                time.sleep(0.01)

    named = {"name": "exp1", "save_every": "7steps"} if os.environ.get("NAMED") else {}
    run = samebits.init(seed=1, lanes=6, threads=1, **named)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,)))
    workers = int(os.environ.get("WORKERS", 0))
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=workers)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    hold("the beginning")
    for epoch in run.epochs(3):
        steps = run.steps(loader)
        for step in steps:
            hold(f"step {step.number}")
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            run.log(loss=step.loss)
            optimizer.step()
            optimizer.zero_grad()
    hold("the end")
    run.save_weights(model, sys.argv[1])
"""
EVERY = ("--name", "exp1", "--save-every", "7steps")


def begin(folder: Path, ranks: int, *options: str, **variables: str) -> Running:
    script = write_script(folder, SCRIPT)
    (folder / "go").unlink(missing_ok=True)
    return start(folder, "-n", str(ranks), *options, script, "weights.safetensors", env=variables)


def alone(folder: Path, **variables: str) -> Running:
    return start_python(folder, write_script(folder, SCRIPT), "weights.safetensors", env={"NAMED": "1", **variables})


def asked_to_end(running: Running, number: signal.Signals) -> None:
    """Send a signal to a run that holds, and let it go on. SLURM may send SIGUSR1 to every process."""
    running.wait_for("holding")
    if number == signal.SIGUSR1:
        for process in running.processes():
            os.kill(process, number)
    else:
        running.process.send_signal(number)
    until(lambda: number.name in running.err, "the answer to the signal", stretched(20.0))
    (running.place / "go").touch()


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "samebits-runs" / "exp1" / "states").iterdir())


def logged_steps(folder: Path) -> list[int]:
    files = sorted((folder / "samebits-runs" / "exp1").glob("*/metrics.jsonl"))
    return [json.loads(line)["step"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("straight")
    assert begin(folder, 1).finish().code == 0
    return digest(folder)


@promise(
    "save-and-resume",
    "SIGTERM, Ctrl-C and SIGUSR1 save the run after the current step and end it with 128 + n, under "
    "`python` too; a second signal, or the end of `--grace`, ends it at once; handlers of the script stay",
    also=[
        "test_a_second_signal_ends_it_at_once_without_a_state",
        "test_where_no_step_ends_within_the_grace_the_ranks_are_stopped",
        "test_a_script_started_with_python_does_the_same",
        "test_handlers_of_the_script_stay_children_end_and_no_signal_is_lost",
    ],
)
def test_a_run_that_is_told_to_end_is_saved_where_it_is_and_goes_on_with_the_same_command(
    tmp_path: Path, undisturbed: str
) -> None:
    for number, ranks, at in ((signal.SIGTERM, 2, 4), (signal.SIGINT, 3, 9), (signal.SIGUSR1, 2, 11)):
        running = begin(tmp_path, ranks, *EVERY, HOLDS_AT=f"step {at}", WORKERS=str(at % 2))
        asked_to_end(running, number)
        stopped = running.finish()
        assert stopped.code == 128 + number, stopped.err
        last = stopped.err.rstrip().splitlines()[-1]
        assert last.startswith(f"stopped   by signal {number.value} ({number.name}) after "), stopped.err
        assert f"saved after step {at}: the same command resumes from there; logs in " in last
        assert "FAILED" not in stopped.err
        assert not any('"failure"' in file.read_text() for file in tmp_path.rglob("events.jsonl"))
        assert states(tmp_path)[-1] == f"step-{at:08d}"
    ended = begin(tmp_path, 1, *EVERY).finish()
    assert ended.code == 0, ended.err
    assert digest(tmp_path) == undisturbed
    assert logged_steps(tmp_path) == list(range(1, 16))


def test_a_second_signal_ends_it_at_once_without_a_state(tmp_path: Path) -> None:
    running = begin(tmp_path, 2, *EVERY, HOLDS_AT="step 9")
    running.wait_for("holding")
    until(lambda: any(tmp_path.glob("samebits-runs/exp1/states/step-00000007")), "the state", stretched(20.0))
    running.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in running.err, "the answer to the signal", stretched(20.0))
    running.process.send_signal(signal.SIGTERM)
    seconds = until(lambda: running.process.poll() is not None, "the end", stretched(10.0))
    stopped = running.finish()
    assert (stopped.code, seconds < stretched(2.0)) == (143, True)
    assert "the last state is of step 7: the same command resumes from there" in stopped.err
    assert states(tmp_path) == ["step-00000007"]


def test_where_no_step_ends_within_the_grace_the_ranks_are_stopped(tmp_path: Path) -> None:
    running = begin(tmp_path, 2, *EVERY, "--grace", "0.5", HOLDS_AT="step 3")
    running.wait_for("holding")
    running.process.send_signal(signal.SIGTERM)
    stopped = running.finish()
    assert stopped.code == 143
    assert "not saved within 0.5 s, so there is no state yet: the same command begins anew" in stopped.err
    assert "FAILED" not in stopped.err


REFUSED = """
    import torch, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=1, lanes=2, threads=1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    run.state.own = run.rank
    for epoch in run.epochs(10**6):
        for step in run.steps(loader):
            for inputs, targets in step:
                run.backward(F.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            if step.number == 3:
                print("under way", flush=True)
"""


@promise("save-and-resume", "A stop that saved nothing, because its state was refused, says why")
def test_a_stop_whose_state_was_refused_says_why(tmp_path: Path) -> None:
    options = ("-n", "2", "--name", "exp1", "--save-every", "100000000steps", "--snapshots", "off")
    running = start(tmp_path, *options, write_script(tmp_path, REFUSED))
    running.wait_for("under way")
    running.process.send_signal(signal.SIGTERM)
    stopped = running.finish()
    assert stopped.code == 143
    assert re.search(r"not saved \(.* is not the same on every rank.*\), so there is no state yet: ", stopped.err)


def test_outside_of_the_loop_a_signal_ends_the_run_as_any_other(tmp_path: Path) -> None:
    running = begin(tmp_path, 2, *EVERY, HOLDS_AT="the end")
    running.wait_for("holding")
    until(lambda: "step-00000014" in states(tmp_path), "the last state, which a process of its own writes")
    running.process.send_signal(signal.SIGTERM)
    stopped = running.finish()
    assert (stopped.code, "stopping" in stopped.err) == (143, False)
    assert "the last state is of step 14" in stopped.err


@pytest.mark.thorough
def test_a_script_started_with_python_does_the_same(tmp_path: Path, undisturbed: str) -> None:
    running = alone(tmp_path, HOLDS_AT="step 4", WORKERS="1")
    asked_to_end(running, signal.SIGUSR1)
    stopped = running.finish()
    assert stopped.code == 128 + signal.SIGUSR1, stopped.err
    assert "samebits: stopped by signal 10 (SIGUSR1); saved after step 4: the same command" in stopped.err
    assert "\nbits " not in stopped.err
    (tmp_path / "go").unlink()
    running = alone(tmp_path, HOLDS_AT="step 12")
    running.wait_for("holding")
    for _ in range(2):
        running.process.send_signal(signal.SIGINT)
        until(lambda: "SIGINT" in running.err, "the answer to the signal", stretched(20.0))
    stopped = running.finish()
    assert (stopped.code, "KeyboardInterrupt" in stopped.err) == (-signal.SIGINT, True)
    assert states(tmp_path) == ["step-00000004", "step-00000007"]
    assert alone(tmp_path).finish().code == 0
    assert digest(tmp_path) == undisturbed


OWN_HANDLERS = """
    import faulthandler, signal, sys, time
    from multiprocessing import get_context
    from samebits.rank.checkpoint.when.signals import SignalStopRequests

    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGHUP, lambda *_: print("the script's own"))
    asks = SignalStopRequests(reports=False)
    asks.listen()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGUSR1)
    print(asks.number)
    def wait():
        begun.set()
        while True:  # Python would not see a signal that comes just before signal.pause()
            time.sleep(0.01)
    begun = get_context("fork").Event()
    child = get_context("fork").Process(target=wait)
    child.start()
    begun.wait()
    child.terminate()
    child.join(10)
    print(child.exitcode)
    signal.raise_signal(signal.SIGTERM)
    print(asks.number)
    asks.rest()
    print("not reached")
"""


def test_handlers_of_the_script_stay_children_end_and_no_signal_is_lost(tmp_path: Path) -> None:
    running = start_python(tmp_path, write_script(tmp_path, OWN_HANDLERS))
    ended = running.finish()
    assert ended.code == -signal.SIGTERM
    assert ended.out.split("\n")[:4] == ["the script's own", "0", "-15", "15"], (ended.out, ended.err)
    assert "Current thread" in ended.err, "faulthandler"
