"""Loader workers that die at any moment are replaced, and the batches stay the same; or the sentence says why not."""

import ctypes
import gc
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstep.errors import WorldError
from lockstep.feed.child_ends import ChildEnded, Interruptible
from lockstep.feed.dataset_mark import mark_of
from lockstep.feed.loader import PreparedLoader, Standing
from lockstep.feed.under_way import COLLATING, NOTHING, ONE, Doing, user_line
from lockstep.feed.worker_deaths import MOST, Death, Deaths, replaced_sentence
from lockstep.journal.failure import FailureKind, kind_of
from lockstep.rank.streams import seed_process

AT_7 = Death(71, -signal.SIGKILL, Doing(ONE, "7", "epoch 2, step 13"))


def test_the_sentences_name_worker_signal_sample_and_place():
    assert AT_7.sentence == (
        "loader worker (pid 71) was killed by signal 9 (SIGKILL) while fetching sample 7 of the data set "
        "(epoch 2, step 13)"
    )
    exited = Death(72, 3, Doing())
    assert exited.sentence == "loader worker (pid 72) ended with exit code 3 between two lanes"
    assert replaced_sentence([AT_7, exited], 0.21, "").endswith(
        "(epoch 2, step 13), loader worker (pid 72) ended with exit code 3 between two lanes; replaced in 0.2 s, "
        "nothing recomputed"
    )
    assert replaced_sentence([AT_7], 0.2, "no memory").endswith("nothing recomputed. The kill: no memory")
    collating = Doing(COLLATING, "8", "epoch 1, step 2")
    assert collating.words == "while collating the lane that begins with sample 8 of the data set (epoch 1, step 2)"


def test_the_second_death_at_a_sample_stops_and_other_ones_do_not():
    deaths = Deaths()
    assert deaths.verdict([AT_7], 5, "", has_changed=False) is None
    elsewhere = Death(73, -signal.SIGKILL, Doing(ONE, "7", "epoch 2, step 14"))
    assert deaths.verdict([elsewhere], 5, "", has_changed=False) is None
    idle = Death(74, 0, Doing(NOTHING))
    assert deaths.verdict([idle], 6, "", has_changed=False) is None
    assert deaths.verdict([idle], 7, "", has_changed=False) is None, "it waited at two different moments"
    error = deaths.verdict([Death(75, -signal.SIGSEGV, AT_7.doing)], 7, "no memory", has_changed=False)
    assert isinstance(error, WorldError)
    assert str(error).startswith(
        "A loader worker (pid 75) was killed by signal 11 (SIGSEGV) while fetching sample 7 of"
    )
    assert str(error).endswith("so the run stops. The kill: no memory.")
    assert kind_of(error) is FailureKind.SCRIPT, "no rank is started again for it"
    assert isinstance(deaths.verdict([idle], 7, "", has_changed=False), WorldError)


def test_the_launcher_is_asked_where_a_worker_cannot_be_replaced_alone():
    changed = Deaths().verdict([AT_7], 5, "", has_changed=True)
    assert kind_of(changed) is FailureKind.WORKER
    assert changed.__notes__ == ["lockstep: while fetching sample 7 of the data set (epoch 2, step 13)"]
    deaths = Deaths()
    for number in range(MOST):
        death = Death(number, 3, Doing(ONE, str(number)))
        assert deaths.verdict([death], 0, "", has_changed=False) is None
    assert kind_of(deaths.verdict([AT_7], 0, "", has_changed=False)) is FailureKind.WORKER


class Holds:
    def __init__(self):
        self.level, self.parts, self.weights = 1, [Level(), Level()], torch.zeros(2)


class Level:
    strength = 1


@pytest.mark.parametrize(
    "change",
    [
        lambda held: setattr(held, "level", 2),
        lambda held: setattr(held, "more", None),
        lambda held: held.parts.append(3),
        lambda held: setattr(held.parts[1], "strength", 5),
        lambda held: held.weights.add_(1),
    ],
)
def test_a_changed_data_set_is_noticed(change):
    held = Holds()
    before = mark_of(held)
    assert mark_of(held) == before
    change(held)
    assert mark_of(held) != before


def test_a_wait_is_interrupted_only_while_it_lasts():
    lost = []
    with Interruptible(lambda: bool(lost)):
        os.kill(os.getpid(), signal.SIGCHLD)
    lost.append(1)
    os.kill(os.getpid(), signal.SIGCHLD)
    with pytest.raises(ChildEnded), Interruptible(lambda: bool(lost)):
        pytest.fail("it came before")
    lost.clear()
    with pytest.raises(ChildEnded), Interruptible(lambda: bool(lost)):
        lost.append(1)
        os.kill(os.getpid(), signal.SIGCHLD)
        time.sleep(1)
        pytest.fail("nothing interrupted the wait")
    os.kill(os.getpid(), signal.SIGCHLD)


def test_the_users_line_of_a_stack():
    stack = (
        "Current thread 0x00007f (most recent call first):\n"
        f'  File "{os.__file__}", line 5 in wait\n'
        '  File "/home/me/train.py", line 12 in load\n'
        '  File "/home/me/train.py", line 20 in __getitem__\n'
        '  File "/x/lockstep/feed/lane_dataset.py", line 80 in _one\n'
        '  File "/home/me/train.py", line 99 in <module>\n'
    )
    assert user_line(stack) == "/home/me/train.py:12 in load"
    assert user_line("") == ""


class Augmented(Dataset):
    """Sample 5 ends its worker as often as there are files that say so; samples draw and are large."""

    def __init__(self, marks=None, how=None, pause=0.0):
        self.marks, self.how, self.pause = marks, how, pause

    def __len__(self):
        return 40

    def __getitem__(self, index):
        mark = next(iter(Path(self.marks).glob("*")), None) if self.marks and index == 5 else None
        if mark is not None:
            mark.unlink()
            HOW[self.how]()
        time.sleep(self.pause)
        drawn = torch.rand(3) + float(np.random.rand()) + random.random()
        return drawn, bytes([index]) * 50_000


HOW = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "_exit": lambda: os._exit(0),
}


def prepared(dataset, **options):
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, **options)
    return PreparedLoader(loader, Standing(3, 0, range(2), 2, seed_process), lambda _: iter(()))


def epochs(loader, number=2, *, between=lambda: None):
    """All batches of some epochs and of an evaluation after each, and what the process would draw next."""
    seed_process(1)
    found = []
    for _ in range(number):
        steps = loader.cut(loader.plan_training(), 1)
        parts = [part for step in steps for part in step.parts]
        for asked, evaluation in ((parts, False), (loader.share(loader.plan_evaluation(3)), True)):
            batches = loader.fetch(asked, evaluation=evaluation)
            for _ in asked:
                between()
                drawn, texts = next(batches)
                found.append((drawn.tolist(), [text[:1] for text in texts]))
            found.append(torch.rand(1).item())
            del batches
    return found


@pytest.fixture(scope="module")
def undisturbed():
    """By `persistent_workers`, with which torch draws one seed fewer."""
    return {kept: epochs(prepared(Augmented(), persistent_workers=kept)) for kept in (False, True)}


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("SIGKILL", "fork"),
        pytest.param("SIGSEGV", "fork", marks=pytest.mark.thorough),
        pytest.param("_exit", "fork", marks=pytest.mark.thorough),
        pytest.param("SIGKILL", "spawn", marks=pytest.mark.thorough),
        pytest.param("SIGSEGV", "forkserver", marks=pytest.mark.thorough),
        pytest.param("_exit", "forkserver", marks=pytest.mark.thorough),
    ],
)
def test_a_worker_that_dies_once_is_replaced(tmp_path, undisturbed, capsys, how, context, persistent):
    (tmp_path / "1").touch()
    loader = prepared(Augmented(tmp_path, how), multiprocessing_context=context, persistent_workers=persistent)
    assert epochs(loader) == undisturbed[persistent]
    assert not list(tmp_path.iterdir())
    said = capsys.readouterr().err
    assert said.count("nothing recomputed") == 1
    assert "while fetching sample 5 of the data set (epoch 1, step " in said
    assert {"SIGKILL": "signal 9 (", "SIGSEGV": "signal 11 (", "_exit": "exit code 0"}[how] in said


def test_a_worker_that_dies_twice_at_a_sample_stops(tmp_path):
    for number in range(3):
        (tmp_path / str(number)).touch()
    with pytest.raises(WorldError, match=r"killed by signal 9 \(SIGKILL\) while fetching sample 5 of the data set"):
        epochs(prepared(Augmented(tmp_path, "SIGKILL")))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.thorough
def test_a_worker_that_cannot_start_stops():
    def breaks(_):
        os._exit(4)

    with pytest.raises(WorldError, match="ended with exit code 4 between two lanes"):
        epochs(prepared(Augmented(), worker_init_fn=breaks))


class Killer:
    """Kills one worker of this process after a while."""

    def __init__(self, rng, most_s):
        self._after, self._pick = rng.uniform(0, most_s), rng.random()
        self.killed = 0
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()

    def _kill(self):
        time.sleep(self._after)
        workers = [pid for pid in children(os.getpid()) if "pt_data_worker" in name(pid)]
        if workers:
            chosen = workers[int(self._pick * len(workers))]
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(chosen, signal.SIGKILL)
                self.killed = chosen


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
def test_kills_at_thirty_random_moments_change_nothing(undisturbed, persistent, sharing, capsys):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(sharing)
    rng, killed = random.Random(5), 0
    try:
        while killed < 30:
            loader = prepared(Augmented(pause=0.001), persistent_workers=persistent)
            with Killer(rng, 0.4) as killer:
                assert epochs(loader, between=lambda: time.sleep(0.001)) == undisturbed[persistent]
            del loader
            gc.collect()
            killed += bool(killer.killed)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert capsys.readouterr().err.count("nothing recomputed") > 10, "others died when nobody needed them any more"
