"""A warm process that forks one for each fault: it saves a state, something happens to it, and another one reads what is left."""

import errno
import json
import os
import shutil
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import damage
from samebits.testing.digests import digest_of
from tests.scripts.power_cut import ORDERS, Disk
from tests.support.system_calls import CHANGES, Killed, Made, watch

CREATES = os.O_CREAT | os.O_TRUNC


class Training:
    """A small run of one rank; each `epoch` changes its bits."""

    def __init__(self):
        self.run = samebits.init(seed=1, lanes=1, threads=1)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
        self.model, self.optimizer, self.loader = self.run.prepare(model, optimizer, DataLoader(data, batch_size=4))
        self.epochs = iter(self.run.epochs(1000))

    def epoch(self):
        next(self.epochs)
        for step in self.run.steps(self.loader):
            step.backward(lambda batch: (self.model(batch[0]) - batch[1]).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()

    def bits(self):
        return digest_of(self.model, self.optimizer)

    def lose(self):
        """Forget everything that was trained."""
        for tensor in (*self.model.state_dict().values(), *self.moments()):
            tensor.zero_()

    def moments(self):
        return [
            tensor for state in self.optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor)
        ]


class Scene:
    """A place with an older state in it, and a run that is about to save a newer one there."""

    def __init__(self, place, kind):
        self.kind, self.place = kind, Path(place)
        self.master, self.there = self.place / "master", self.place / "there"
        self.path = self.there / ("runs/exp1/state" if kind == "nested" else "state")
        self.training = Training()
        self.training.epoch()
        self.training.run.save_state(self.master / "state")
        if kind in ("first", "nested"):
            shutil.rmtree(self.master / "state")
        self.bits = {"old": self.training.bits()}
        self.training.epoch()
        self.bits["new"] = self.training.bits()

    def reset(self):
        shutil.rmtree(self.there, ignore_errors=True)
        shutil.copytree(self.master, self.there)

    def save(self):
        self.training.run.save_state(self.path)

    def refused(self, call):
        """The error that a call has in this scene."""
        return errno.EINVAL if call.name == "renameat2" and self.kind == "renames" else None

    def record(self):
        """All calls of one save that nothing disturbs."""
        self.reset()
        calls = []
        assert watch(self.save, self.refused, lambda call: calls.append(Made.of(call))) == 0
        return calls

    def disk_after(self, calls):
        """The model of the disk after some calls of a save."""
        self.reset()
        disk = Disk(self.there)
        for call in calls:
            disk.repeat(call)
        return disk

    def find(self):
        """Load what is there into a run that has forgotten everything, save again, and read that: which state it was."""
        return self.which(forked(self._find))

    def which(self, told):
        return next((key for key, bits in self.bits.items() if bits == told), told)

    def loaded(self):
        self.training.lose()
        if self.training.run.load_state(self.path, missing_ok=True) or StateFolder(self.path).find():
            return self.training.bits()
        return "nothing"

    def _find(self):
        told = self.loaded()
        self.training.run.save_state(self.path)
        place, manifest = StateFolder(self.path).read_manifest()
        assert damage(place, manifest) is None
        assert place == self.path
        assert [entry.name for entry in self.path.parent.iterdir()] == ["state"], sorted(self.path.parent.iterdir())
        return told


def forked(work):
    """The result (JSON) of `work` in a forked process; the text of what it raised."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = json.dumps(work())
        except BaseException:
            told = json.dumps(traceback.format_exc())
        with os.fdopen(writes, "w") as file:
            file.write(told)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        told = file.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else "it died"


def changes_now(call, place):
    """Whether a call that is about to be made may change the disk below `place`."""
    flags = {"open": 1, "openat": 2}.get(call.name)
    changes = bool(call.args[flags] & CREATES) if flags else call.name in CHANGES
    return changes and any(Path(path).is_relative_to(place) for path in call.paths())


def is_change(call):
    """Whether it may change the disk, flushes included."""
    return bool(call.flags & CREATES) if call.name in ("open", "openat") else call.name in CHANGES


def killed_saves(place, kind, every, stride=1):
    """Kill a save before each call, or before each one that changes the disk; return how often, and what was wrong."""
    scene = Scene(place, kind)
    calls = scene.record()
    moments = [call.number for call in calls if every or is_change(call)][::stride]
    before = "nothing" if kind in ("first", "nested") else "old"
    found, wrong = [], []
    for moment in moments:
        scene.reset()

        def look(call, moment=moment):
            if call.number == moment:
                raise Killed
            return scene.refused(call)

        ended = watch(scene.save, look)
        found.append(scene.find())
        if ended != -9 or found[-1] not in (before, "new"):
            wrong.append((moment, ended, found[-1]))
    if found != sorted(found, key=lambda one: one == "new"):
        wrong.append(("an older state is found after a newer one was", found))
    return len(moments), found.count("new"), wrong


def power_cuts(place, kind, num_images):
    """Cut the power at a random moment of a save; return which states were found and what was wrong, and in which image."""
    scene = Scene(place, kind)
    random, found, wrong = Random(7), [], []
    calls = scene.record()
    saved = scene.there.rename(scene.place / "saved")
    assert scene.disk_after(calls).is_as_on(saved), "the model is wrong"
    before = "nothing" if kind in ("first", "nested") else "old"
    for number in range(num_images):
        moment = random.choice([random.randrange(len(calls)), len(calls)])
        order = ORDERS[number % len(ORDERS)]
        disk = scene.disk_after(calls[:moment])
        shutil.rmtree(scene.there)
        disk.write(scene.there, order, random)
        tree = sorted(str(path.relative_to(scene.there)) for path in scene.there.rglob("*"))
        found.append(scene.find())
        if found[-1] not in ([before, "new"] if moment < len(calls) else ["new"]):
            wrong.append((number, order, moment, found[-1], tree))
    return Counter(found), wrong


HEALED = "/the disk works again"
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO, "read-only": errno.EROFS, "forbidden": errno.EACCES}


def failing_saves(place, kind, trouble, stays, stride=1):
    """Let each call that changes the disk fail in one save each; return how many, and what was wrong.

    Args:
        place: where to work.
        kind: of the scene.
        trouble: one of ERRORS, or "gone" for a folder that is removed before the call.
        stays: whether all later calls of that save fail too.
        stride: take one of so many calls.
    """
    scene = Scene(place, kind)
    calls = [call for call in scene.record() if is_change(call)]
    told, wrong = scene.place / "told", []
    before = "nothing" if kind == "first" else "old"
    is_safe = max(call.number for call in calls if call.name == "fsync" and call.paths == (scene.there,))
    for call in calls[::stride]:
        scene.reset()
        ended = watch(
            lambda: told.write_text(json.dumps(_save_fails_and_works(scene))), _fault(scene, call, trouble, stays)
        )
        said, found, later = json.loads(told.read_text()) if not ended else (f"it ended with {ended}", "", "")
        begins = f"The state could not be written to {scene.path}: "
        if said and not (said.startswith(begins) and "\n" not in said and said.endswith(".")):
            wrong.append((call.number, call.name, call.paths, said))
        if not said and call.number <= is_safe and call.result >= 0 and trouble != "gone":
            wrong.append((call.number, call.name, call.paths, "the save says nothing"))
        may_be = (
            {"new"}
            if not said
            else {before}
            if call.name != "fsync" or (kind == "replace" and not stays)
            else {before, "new"}
        )
        if trouble == "gone":
            may_be |= {"nothing"}
        if found not in may_be or later != "newer":
            wrong.append((call.number, call.name, call.paths, said, found, later))
    return len(calls[::stride]), wrong


def _fault(scene, failing, trouble, stays):
    healed = False

    def look(call):
        nonlocal healed
        healed = healed or (call.name == "openat" and call.text(1) == HEALED)
        later = stays and call.number > failing.number and changes_now(call, scene.place)
        if healed or not (call.number == failing.number or later):
            return scene.refused(call)
        if trouble == "gone":
            shutil.rmtree(scene.there, ignore_errors=True)
            return None
        return ERRORS[trouble]

    return look


def _save_fails_and_works(scene):
    """What the save said, which state is there then, and which after a later one."""
    said = ""
    try:
        scene.save()
    except samebits.EnvironmentFailure as error:
        said = str(error)
    try:
        Path(HEALED).open().close()
    except OSError:
        found = scene.which(forked(scene.loaded))
    scene.training.epoch()
    bits = scene.training.bits()
    scene.save()
    assert [entry.name for entry in scene.there.iterdir()] == ["state"], sorted(scene.there.iterdir())
    return said, found, "newer" if forked(scene.loaded) == bits else "another"
