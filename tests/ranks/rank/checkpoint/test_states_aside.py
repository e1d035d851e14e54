"""Automatic states are written by a process of their own: training goes on, and nothing gets lost or stays behind."""

import json
import logging
import os
import resource
import select
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.machine.leftovers import descendants
from samebits.protocol.layout.mesh import Form
from samebits.protocol.state_files.whole_state import trouble_of
from samebits.rank.checkpoint.store.checkpointer import AT_END, LATE
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.launching import kill, run_script, start, until, write_script
from tests.support.notices import Heard
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

PLACE = Path("samebits-runs", "exp1", "states")
DONE = "manifest.json"


def the_writer():
    """The process id of the one process that writes."""
    [found] = [
        p for p in descendants(os.getpid()) if b"store.writer_process" in Path(f"/proc/{p}/cmdline").read_bytes()
    ]
    return found


def has_answered(run):
    """Wait until the process, if there is one and it has not answered yet, has written the state that was handed to it."""
    writer = run._run.components.states.automatic._checkpointer._writer
    if writer is not None and writer.is_busy:
        select.select([writer._channel], [], [])


def is_there(step):
    return (PLACE / f"step-{step:08d}" / DONE).exists()


def later(seconds, what, *args):
    """Do it in the middle of a wait of this rank, which cannot do it itself."""
    timer = threading.Timer(seconds, what, args)
    timer.daemon = True
    timer.start()


def train(place, act, steps=8, keep=9):
    """A state after steps 3 and 6, and at 9 if there are as many; `act(step)` is called on rank 0 in each step's body."""
    os.chdir(place)
    heard = Heard()
    logging.getLogger("samebits").addHandler(heard)
    run = samebits.init(seed=3, lanes=2, threads=1, name="exp1", save_every="3steps", keep=keep)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(scenarios.digits(160), batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(1):
        for step in run.steps(loader):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            if run.is_main:
                if step.number == 4 or (step.number == 8 and act == "find_no_room"):
                    has_answered(run)
                ACTS[act](step.number)
            if step.number == steps:
                break
    digest = digest_of(model, optimizer)
    samebits.finish()
    return digest, [one for one in heard.notices if " state " in one], descendants(os.getpid()) if run.is_main else []


def stand_still(step):
    """The process is stopped while the state of step 6 is handed to it; steps go on, and the end waits for it."""
    if step == 5:
        os.kill(the_writer(), signal.SIGSTOP)
    if step == 8:
        assert not is_there(6)
        later(2.5, os.kill, the_writer(), signal.SIGCONT)


def come_late(step):
    """It is still stopped when the state of step 9 is due."""
    if step == 5:
        os.kill(the_writer(), signal.SIGSTOP)
    if step == 9:
        later(1.5, os.kill, the_writer(), signal.SIGCONT)


def find_no_room(step):
    """It may write nothing larger than 100 bytes when the state of step 6 comes."""
    if step == 4:
        resource.prlimit(the_writer(), resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    if step == 8:
        resource.prlimit(the_writer(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def lose_it(step):
    """It is stopped before the state of step 6 comes, and killed afterwards."""
    if step == 4:
        os.kill(the_writer(), signal.SIGSTOP)
    if step == 7:
        os.kill(the_writer(), signal.SIGKILL)


def lose_it_idle(step):
    """It is killed when the state of step 3 is on the disk, before that of step 6 comes."""
    if step == 4:
        process = the_writer()
        os.kill(process, signal.SIGKILL)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def have_no_memory(step):
    """There is room for each file of a state, but not for all of them in memory."""
    if step == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (32_000, resource.RLIM_INFINITY))


ACTS = {act.__name__: act for act in (stand_still, come_late, find_no_room, lose_it, lose_it_idle, have_no_memory)} | {
    "nothing": lambda _: None
}


def states(place):
    """The steps of the states, which are whole."""
    found = sorted((place / PLACE).iterdir())
    assert [trouble_of(path) for path in found] == [None] * len(found)
    return [int(path.name[5:]) for path in found]


@promise(
    "save-and-resume",
    "Steps go on while an automatic state is written, the end waits for it, every rank copies a share, "
    "and the files are those of one rank",
    also=[
        "test_every_rank_copies_a_share_and_the_files_are_those_of_one_rank",
        "test_each_byte_is_copied_once_by_a_rank_that_holds_it",
        "test_a_state_that_is_due_while_another_is_written_waits_for_it_and_says_so",
        "test_where_no_memory_is_states_are_written_at_once_and_old_ones_removed",
    ],
)
def test_steps_go_on_while_a_state_is_written_and_the_end_waits_for_it(tmp_path):
    (tmp_path / "straight").mkdir()
    (tmp_path / "stopped").mkdir()
    straight = run_ranks(train, Started(2), str(tmp_path / "straight"), "nothing")
    (digest, heard, left), _ = run_ranks(train, Started(2), str(tmp_path / "stopped"), "stand_still")
    assert digest == straight[0][0]
    assert (heard, left) == ([AT_END], [])
    assert states(tmp_path / "stopped") == [3, 6]
    for one in (tmp_path / "straight" / PLACE).glob("*/*"):
        assert one.read_bytes() == (tmp_path / "stopped" / PLACE / one.parent.name / one.name).read_bytes()


def widely(place):
    """States after steps 2 and 4, of tensors that are cut into pieces; whether this rank writes to their memory."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=2, threads=1, name="exp1", save_every="2steps")
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 1100), nn.BatchNorm1d(1100), nn.Linear(1100, 1100), nn.Linear(1100, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(scenarios.digits(64), batch_size=16))
    for _ in run.epochs(1):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    is_there = "/memfd:samebits-state-" in Path("/proc/self/maps").read_text()
    samebits.finish()
    return is_there


def test_every_rank_copies_a_share_and_the_files_are_those_of_one_rank(tmp_path):
    starts = [Started(1), *(Started(2, form=Form(one)) for one in ("ddp", "zero1", "pipeline"))]
    for number, started in enumerate(starts):
        place = tmp_path / str(number)
        place.mkdir()
        assert run_ranks(widely, started, str(place)) == [True] * started.ranks
        assert states(place) == [2, 4]
        for one in (tmp_path / "0" / PLACE).glob("*/*.safetensors"):
            assert one.read_bytes() == (place / PLACE / one.parent.name / one.name).read_bytes(), (started, one)


def test_a_state_that_is_due_while_another_is_written_waits_for_it_and_says_so(tmp_path):
    [(_, heard, left)] = run_ranks(train, Started(1), str(tmp_path), "come_late", 10)
    assert (heard, left) == ([LATE], [])
    assert states(tmp_path) == [3, 6, 9]


@pytest.mark.parametrize(("act", "why"), [("find_no_room", "File too large"), ("lose_it", "has ended with signal 9")])
def test_a_state_that_cannot_be_written_is_told_and_the_next_one_is_written(tmp_path, act, why):
    [(_, [told], left)] = run_ranks(train, Started(1), str(tmp_path), act, 10)
    assert told.startswith(f"The state could not be written to {tmp_path / PLACE}/step-00000006: ")
    assert why in told
    assert told.endswith("The run continues.")
    assert left == []
    assert states(tmp_path) == [3, 9]


def test_where_no_memory_is_states_are_written_at_once_and_old_ones_removed(tmp_path):
    [(_, [told], left)] = run_ranks(train, Started(1), str(tmp_path), "have_no_memory", 10, 1)
    assert told.startswith("There is no memory for a copy of the state (File too large)")
    assert left == []
    assert states(tmp_path) == [9]


def test_a_process_that_ended_between_two_states_costs_none(tmp_path):
    assert run_ranks(train, Started(1), str(tmp_path), "lose_it_idle")[0][1:] == ([], [])
    assert states(tmp_path) == [3, 6]


SCRIPT = """
    import os, select, signal, time, torch
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=1, threads=1, name="exp1", save_every="2steps")
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8))
    for _ in run.epochs(1):
        for step in run.steps(loader):
            for (inputs,) in step:
                run.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if run.is_main and step.number == 3:
                select.select([run._run.components.states.automatic._checkpointer._writer._channel], [], [])  # it has written the state
                from samebits.machine.leftovers import descendants
                for process in descendants(os.getpid()):
                    os.kill(process, signal.SIGSTOP)
            if step.number == 5:
                print("handed over", flush=True)
                time.sleep(100)
"""


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_a_kill_leaves_no_process_and_the_state_before(tmp_path, victim):
    run = start(tmp_path, "-n", "2", "-v", "--max-restarts", "0", write_script(tmp_path, SCRIPT))
    run.wait_for("handed over")
    kill(run.pid_of(0) if victim == "rank" else run.process.pid)
    until(lambda: not run.processes(), "the end of all processes")
    run.finish()
    assert states(tmp_path) == [2]


DYING = """
    import json, os, signal, torch
    import torch.nn.functional as F
    from pathlib import Path
    from torch.utils.data import DataLoader, TensorDataset
    import samebits
    from samebits.rank.checkpoint.store.memory import Mapped

    victim, when, every = json.loads(os.environ["DIES"])
    run = samebits.init(seed=1, threads=1, name="exp1", save_every=every, keep=9)
    put, at = Mapped.put, 0


    def fatal(self, *how):
        put(self, *how)
        if run.rank == victim and at == when and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


    Mapped.put = fatal
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Dropout(0.3), torch.nn.Linear(30, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))
    for _ in run.epochs(3):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            at = step.number
"""


@pytest.fixture(scope="module")
def undying(tmp_path_factory):
    return bits_of(tmp_path_factory.mktemp("undying"), "-n", "1", "--lanes", "2", victim=9)


def bits_of(place, *options, victim, when=0, every="epoch"):
    dies = {"DIES": json.dumps([victim, when, every])}
    ended = run_script(place, DYING, *options, env=dies)
    assert (place / "killed").exists() == (victim < 9), ended.err
    return ended.bits


@promise(
    "save-and-resume",
    "While an automatic state is written, a kill of a rank, the launcher or the process that writes "
    "costs that state at most; what cannot be written is told, and the next one is written",
    also=[
        "test_a_state_that_cannot_be_written_is_told_and_the_next_one_is_written",
        "test_a_kill_leaves_no_process_and_the_state_before",
        "test_a_run_goes_on_and_saves_the_next_step_when_the_process_that_writes_is_killed",
        "test_a_process_that_ended_between_two_states_costs_none",
    ],
)
@pytest.mark.parametrize(
    ("victim", "every"),
    [
        (1, "4steps"),
        pytest.param(0, "4steps", marks=pytest.mark.thorough),
        pytest.param(1, "epoch", marks=pytest.mark.thorough),
        pytest.param(0, "epoch", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("zero1", "pipeline"))]
)
@pytest.mark.thorough
def test_a_rank_that_dies_while_it_copies_costs_that_state_at_most(tmp_path, undying, strategy, victim, every):
    bits = bits_of(tmp_path, "-n", "2", "--lanes", "2", "--strategy", strategy, victim=victim, when=8, every=every)
    assert bits == undying
    assert {4, 12} <= set(states(tmp_path)) <= {4, 8, 12}
