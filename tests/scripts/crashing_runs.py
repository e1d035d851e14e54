"""A run that saves by itself and that something happens to: what goes on from its states must end with the bits of one that never stopped."""

import errno
import json
import logging
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.checkpoint.store.checkpointer import AT_END, LATE
from samebits.rank.checkpoint.store.writer_handle import PROGRAM
from samebits.testing.digests import digest_of
from tests.scripts.crashing_saves import ERRORS, changes_now, is_change
from tests.scripts.power_cut import ORDERS, Disk
from tests.support.notices import Heard
from tests.support.system_calls import Killed, Made, watch

STATES = Path("samebits-runs/exp1/states")
KEPT = ["step-00000007", "step-00000008"]
"""What is left at the end of a run, which keeps two states."""


class Prepared:
    """A run that is about to begin; `train` once, in a forked process."""

    def __init__(self, place):
        place.mkdir()
        os.chdir(place)
        self.run = samebits.init(seed=1, lanes=4, threads=1, name="exp1", save_every="1steps", keep=2)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = TensorDataset(torch.randn(24, 3), torch.randint(0, 2, (24,)))
        loader = DataLoader(data, batch_size=6, shuffle=True)
        self.model, self.optimizer, self.loader = self.run.prepare(model, optimizer, loader)

    def train(self, last=8):
        """Up to two epochs of four steps; the bits, the first step that was made, and what was said about states."""
        heard = Heard()
        logging.getLogger("samebits").handlers = [heard]
        first, is_over = None, False
        for _ in self.run.epochs(2):
            for step in self.run.steps(self.loader):
                if is_over := step.number > last:
                    break
                first = first or step.number
                step.backward(lambda batch: F.cross_entropy(self.model(batch[0]), batch[1]))
                self.optimizer.step()
                self.optimizer.zero_grad()
            if is_over:
                break
        samebits.finish()  # the last state is on the disk
        return [
            digest_of(self.model, self.optimizer),
            first,
            [one for one in heard.notices if "state" in one and not any(words in one for words in OF_OTHERS)],
        ]


OF_OTHERS = ("ended well before", "no state holds")
"""Notices that have nothing to do with writing: this loop is found to keep what a resumed one lacks."""


def watch_in_turn(work, look, seen=None):
    """`watch`, but the process that writes has the priority of the rank, so a busy machine does not make a test slow."""

    def refuse(call):
        error = look(call)
        return errno.EPERM if call.name == "setpriority" else error

    return watch(work, refuse, seen)


class Ring:
    """The states of the two steps up to `after`, none if it is 0, and a process that makes the next step and saves."""

    def __init__(self, place, after):
        self.place, self.after = Path(place), after
        self.prepared = Prepared(self.place / "there")
        self.there = self.place / "there" / STATES
        self.root = self.there if after else self.there.parents[1]
        """Below it the power is cut: where nothing is yet, the folders of the run are new."""
        self.state = self.there / f"step-{after + 1:08d}"
        self.straight = self.train(lambda call: None)[1][0]
        shutil.rmtree(self.there)
        if after:
            assert watch_in_turn(lambda: self.prepared.train(after), lambda call: None) == 0
            self.there.rename(self.place / "master")

    def reset(self):
        shutil.rmtree(self.root, ignore_errors=True)
        if self.after:
            shutil.copytree(self.place / "master", self.there)
        else:
            self.root.mkdir()

    def step(self):
        """Make one step; when it returns, its state is on the disk."""
        self.prepared.train(self.after + 1)

    def record(self):
        """The calls of that step that change what is below `root`, by whatever process."""
        self.reset()
        calls = []
        assert watch_in_turn(self.step, lambda call: None, lambda call: calls.append(Made.of(call))) == 0
        return [call for call in calls if self.is_below(call)]

    def is_below(self, call):
        return is_change(call) and any(path.is_relative_to(self.root) for path in map(Path, call.paths))

    def trouble(self):
        """Go on from what is there to the end; what is wrong, and the first step that was made."""
        ended, (bits, first, said) = self.train(lambda call: None)
        if ended or bits != self.straight:
            return f"it ended with {ended} and {bits}, and said {said}", first
        return self.left(), first

    def train(self, look):
        """Make all steps that are left while each call is looked at; the exit code, and what `train` returns."""
        told = self.place / "told"
        told.write_text("[null, null, []]")
        ended = watch_in_turn(lambda: told.write_text(json.dumps(self.prepared.train())), look)
        return ended, json.loads(told.read_text())

    def go_on(self, look):
        """Make all steps that are left while something happens; what is wrong at their end, and what was said of states."""
        ended, (bits, _, said) = self.train(look)
        if ended:
            return f"it ended with {ended}", []
        said = [one for one in said if one not in (LATE, AT_END) and not one.startswith("the run resumes in")]
        if bits != self.straight or self.left():
            return self.left() or "other bits", said
        problem, first = self.trouble()
        return problem or (f"step {first} was made again" if first else ""), said

    def disk_after(self, calls):
        """The model of the disk after some calls of a step."""
        self.reset()
        disk = Disk(self.root)
        for call in calls:
            disk.repeat(call)
        return disk

    def left(self):
        """What is wrong with the states that are left at the end."""
        left = sorted(path.name for path in self.there.iterdir())
        return "" if left == KEPT else f"left {left}"


class Sides:
    """Tells the calls of a run apart, and numbers them: those of the rank, and of the process that writes its states.

    The process is "starting" until it has its first order, and "writing" from then on.
    """

    def __init__(self):
        self.rank = 0
        """The process that was there first."""
        self._writers = set()
        self._has_order = False
        self._numbers = Counter()

    def moment(self, call):
        """Whose call it is, in which phase, and its number there."""
        self.rank = self.rank or call.process
        phase = self._phase(call)
        self._numbers[phase] += 1
        return phase, self._numbers[phase]

    def _phase(self, call):
        if call.process not in self._writers:
            if PROGRAM.encode() not in Path(f"/proc/{call.process}/cmdline").read_bytes():
                return "rank"
            self._writers.add(call.process)
        self._has_order = self._has_order or (call.name == "pread64" and "memfd:" in call.paths()[0])
        return "writing" if self._has_order else "starting"


def moments_of(ring, strides):
    """The moments of a step that nothing disturbs: in each phase that has a stride, one of so many."""
    ring.reset()
    sides, found = Sides(), []
    assert watch_in_turn(ring.step, lambda call: found.append(sides.moment(call))) == 0
    return [(phase, number) for phase, number in found if phase in strides and number % strides[phase] == 0]


def at(moment, act):
    """A look at calls: `act(sides, call)` at one moment."""
    sides = Sides()

    def look(call):
        if sides.moment(call) == moment:
            act(sides, call)

    return look


def kill_all(_, call):
    """The power of the node, or of a container, is cut; the disk goes on."""
    raise Killed


def kill_rank(sides, _):
    """The process that writes goes on until it hears of it."""
    os.kill(sides.rank, signal.SIGKILL)


def kill_writer(_, call):
    """The rank goes on."""
    os.kill(call.process, signal.SIGKILL)


KILLS = {"run": kill_all, "rank": kill_rank}


def killed_runs(place, after, victim, strides):
    """Kill a run at each call that is made in one of its steps, by the rank or by the process that writes its states.

    Args:
        place: where to work.
        after: see `Ring`.
        victim: one of KILLS.
        strides: see `moments_of`.

    Returns:
        How often, the steps that were first then, and what was wrong.
    """
    ring = Ring(place, after)
    moments, firsts, wrong = moments_of(ring, strides), [], []
    for moment in moments:
        ring.reset()
        ended = watch_in_turn(ring.step, at(moment, KILLS[victim]))
        problem, first = ring.trouble()
        firsts.append(first)
        may_be = {
            -9: (after + 1, after + 2),
            0: (after + 2,),
        }  # the rank may have ended when the other has its last call
        if problem or first not in may_be.get(ended, ()):
            wrong.append((moment, ended, problem, first))
    return len(moments), firsts, wrong


def lost_writers(place, after, strides):
    """Kill the process that writes at each of its calls for one state: the run goes on, and saves its later steps.

    Returns:
        How often, how often the run said so, and what was wrong.
    """
    ring = Ring(place, after)
    moments, num_said, wrong = moments_of(ring, strides), 0, []
    for moment in moments:
        ring.reset()
        problem, said = ring.go_on(at(moment, kill_writer))
        lost = f"{ring.state}: the process that wrote it has ended with signal 9. The run continues."
        num_said += len(said)
        if problem or said not in ([f"The state could not be written to {lost}"], []):
            wrong.append((moment, problem, said))
    return len(moments), num_said, wrong


def failing_runs(place, after, trouble, stays, stride=1):
    """Let each call for one state that changes the disk fail: the run says so, goes on, and saves its later steps.

    Args:
        place: where to work.
        after: see `Ring`.
        trouble: one of ERRORS.
        stays: whether all later calls for that state fail too.
        stride: take one of so many calls.

    Returns:
        How many calls, how often the run said so, and what was wrong.
    """
    ring, error = Ring(place, after), ERRORS[trouble]
    calls = ring.record()
    is_safe = min(number for number, call in enumerate(calls) if call.name == "fsync" and call.paths == (ring.there,))
    wrong, num_said, num_calls = [], 0, 0
    for number, call in list(enumerate(calls))[::stride]:
        if call.result < 0:
            continue
        ring.reset()
        problem, said = ring.go_on(_fault(ring, number, error, stays=stays))
        num_calls, num_said = num_calls + 1, num_said + len(said)
        if problem or len(said) != (number <= is_safe):
            wrong.append((number, call.name, call.paths, problem, said))
        for one in said:
            begins = f"The state could not be written to {ring.state}: [Errno {error}] {os.strerror(error)}"
            if not one.startswith(begins) or not one.endswith(". The run continues."):
                wrong.append((number, call.name, call.paths, one))
    return num_calls, num_said, wrong


def _fault(ring, first, error, *, stays):
    """The disk fails at the call of this number, and perhaps until the process that writes gives its answer."""
    made, is_over = 0, False

    def look(call):
        nonlocal made, is_over
        is_over = is_over or (made > first and call.name == "sendto")
        if is_over or not changes_now(call, ring.there):
            return None
        made += 1
        return error if made == first + 1 or (stays and made > first) else None

    return look


def cut_runs(place, after, num_images):
    """Cut the power at a random moment of a step and of its state's writing; which steps were first then, and what was wrong."""
    ring = Ring(place, after)
    calls = ring.record()
    saved = ring.root.rename(ring.place / "saved")
    assert ring.disk_after(calls).is_as_on(saved), "the model is wrong"
    random, firsts, wrong = Random(11), Counter(), []
    for number in range(num_images):
        moment = random.choice([random.randrange(len(calls)), len(calls)])
        order = ORDERS[number % len(ORDERS)]
        disk = ring.disk_after(calls[:moment])
        shutil.rmtree(ring.root)
        disk.write(ring.root, order, random)
        tree = sorted(str(path.relative_to(ring.root)) for path in ring.root.rglob("*"))
        problem, first = ring.trouble()
        firsts[first] += 1
        if problem or first not in ([after + 1, after + 2] if moment < len(calls) else [after + 2]):
            wrong.append((number, order, moment, problem, first, tree))
    return dict(firsts), wrong


def part_of_a_history(place, strategy, last):
    """Go on from the newest state; a rank dies in the step after `last`. The bits at the end, if it is reached."""
    os.chdir(place)
    run = samebits.init(seed=1, lanes=4, threads=1, strategy=strategy, name="exp1", save_every="1steps", keep=2)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(30, 3), torch.randint(0, 2, (30,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    for _ in run.epochs(3):
        for step in run.steps(loader):
            if last is not None and step.number > last and run.rank == run.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
    return digest_of(model, optimizer)
