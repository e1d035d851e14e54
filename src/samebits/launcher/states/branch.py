"""`run --from RUN@STEP`: a copy of another run's state in the folder of the new one, put there once.

    look      before anything is made: which run, which state, and whether the new run is that branch already
    begin     under the new run's lock: the copy, whole or not at all; of the other run nothing changes

The parent is noted beside the states before the copy is in place. A start that was killed between the two has begun nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.states.description import COMPLETE, summary_of
from samebits.launcher.states.places import Found, states_by_step
from samebits.machine.regular_file import open_regular
from samebits.machine.visible import visible
from samebits.notices import say
from samebits.protocol.branch import PARENT, Parent, Source
from samebits.protocol.run_folder import STATES, RunFolder, read_json, write_private
from samebits.protocol.saving import RESUME_NONFINITE, state_name
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import NAME, Manifest, damage, problem_of
from samebits.protocol.state_files.whole_state import open_state


@dataclass(frozen=True)
class Branch:
    """What a command asks for."""

    source: Source
    new: Path
    """The folder of the new run, which may not be there yet."""
    runs: Path
    """The folder of all runs."""
    takes_any: bool = False
    """Whether a state will do that is not finite."""

    @property
    def name(self) -> str:
        """The parent's."""
        return Path(os.path.abspath(self.source.word)).name  # noqa: PTH100 - a link may have the run's name

    def look(self) -> None:
        """Raise `UsageError` for what cannot be; nothing is made or changed."""
        if "://" in self.source.word:
            raise UsageError(
                f"--from takes a run of this disk, and {visible(self.source.word)} is a URL.",
                "Name a run's folder: `samebits run --states URL` copies states to a URL, and resumes from there.",
            )
        if self._is_itself():
            problem = f"{visible(self.name)} cannot be a branch of itself."
            raise UsageError(problem, "Choose another --name, or leave out --from to resume it.")
        if self._is_made() is None:
            self._candidates()

    def _is_itself(self) -> bool:
        with suppress(OSError, ValueError, UsageError):
            return run_folder(self.source.word, self.runs).samefile(self.new)
        return False

    def begin(self) -> Parent:
        """Put the copy in place, unless it was; under the lock of the new run.

        Raises:
            UsageError: for a state that is damaged or not finite, or where there is no room.
        """
        if (made := self._is_made()) is not None:
            return made
        problems = []
        for step, state in self._candidates():
            try:
                self._copy(state, parent := Parent(self.name, step))
            except UsageError as error:
                if self.source.step is not None:
                    raise
                problems.append(error)
                say(f"{problem_of(error)} The state before it is looked at.")
            else:
                return parent
        raise problems[0]

    def _is_made(self) -> Parent | None:
        """The parent, if the new run has states and is the branch that is asked for; None where the branch is to be made."""
        noted, steps = noted_parent(self.new), states_by_step(self.new / STATES)
        if noted is None and steps:
            raise UsageError(
                f"{visible(self.new.name)} has states of its own (the newest after step {max(steps)}), and was not branched from another run.",
                "Choose another --name, or leave out --from to resume it.",
            )
        if not steps or noted is None:
            return None
        if noted.run != self.name or self.source.step not in (None, noted.step):
            wanted = f" after step {self.source.step}" if self.source.step is not None else ""
            raise UsageError(
                f"{visible(self.new.name)} is a branch of {noted.text}, and not of {visible(self.name)}{wanted}.",
                "Choose another --name.",
            )
        return noted

    def _candidates(self) -> list[tuple[int, Path]]:
        """The states that may be taken, the newest first: the one that is named, or all."""
        place = run_folder(self.source.word, self.runs)
        steps, step = states_by_step(place / STATES), self.source.step
        if not steps:
            raise UsageError(f"{visible(self.name)} has no state yet.", "Let it save some: --save-every 500steps.")
        if step is None:
            return sorted(steps.items(), reverse=True)
        if step not in steps:
            raise _no_such_step(self.name, step, steps)
        if (row := summary_of(Found(steps[step]))) is None or row["files"] != COMPLETE:
            problem = row["problem"] if row is not None else f"{visible(self.name)} has just removed it."
            raise UsageError(problem, "Choose another state: `samebits checkpoint ls` lists them.")
        return [(step, steps[step])]

    def _copy(self, state: Path, parent: Parent) -> None:
        target = StateFolder(self.new / STATES / state_name(parent.step))
        place, manifest = open_state(state)
        if manifest.not_finite and not self.takes_any:
            raise UsageError(
                f"The state of {parent.text} is not finite: {visible(manifest.not_finite)}.",
                f"Choose an older one, or give {RESUME_NONFINITE} to take it as it is.",
            )
        try:
            target.begin()
            try:
                _fill(target.stage, place, manifest)
                write_private(self.new / PARENT, json.dumps(vars(parent)) + "\n")
                target.install()
            except BaseException:
                target.abandon()
                raise
        except OSError as error:
            problem = f"{visible(place)} cannot be copied to {visible(self.new)}: {error.strerror}."
            raise UsageError(problem, "Make room there, or look at its permissions.") from None


def _fill(stage: Path, place: Path, manifest: Manifest) -> None:
    """Copy what the manifest names, and no link or device; the manifest itself comes last. Raises UsageError for damage."""
    for name in (*manifest.files, NAME):
        if name == NAME and (problem := damage(stage, manifest)) is not None:
            raise UsageError(problem.problem.replace(str(stage), str(place)), problem.fix)
        with open_regular(place / name, follow=False) as source, (stage / name).open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


def run_folder(word: str, runs: Path) -> Path:
    """The folder with the states of the run that `word` names: a path, or what is below `runs`; one of its starts will do.

    Raises:
        UsageError: when there is none.
    """
    there = []
    for place in (Path(word), runs / word):
        with suppress(OSError, ValueError):
            if place.is_dir():
                there.append(place)
    for place in there:
        decided = read_json(RunFolder(place).decided).get("states")
        folders = [place, *([place.absolute().parent] if (place / "plan.json").is_file() else [])]
        for folder in [*folders, *([Path(decided).parent] if isinstance(decided, str) and decided else [])]:
            with suppress(OSError, ValueError):
                if (folder / STATES).is_dir():
                    return folder
    if there:
        problem = f"{visible(word)} has no states: it ran without --save-every."
        raise UsageError(problem, "Name another run: `samebits checkpoint ls` lists what has states.")
    raise UsageError(
        f"There is no run {visible(word)}, neither here nor in {visible(runs)}.",
        "Name one that `samebits checkpoint ls` lists.",
    )


def noted_parent(place: Path) -> Parent | None:
    """The run from which the one in the folder `place` was branched; None where it was not."""
    return Parent.read(read_json(place / PARENT))


def _no_such_step(name: str, step: int, steps: Mapping[int, Path]) -> SamebitsError:
    below, above = [one for one in steps if one < step], [one for one in steps if one > step]
    near = [*([max(below)] if below else []), *([min(above)] if above else [])]
    words = (
        f"the nearest are after steps {near[0]} and {near[1]}"
        if len(near) > 1
        else f"the nearest is after step {near[0]}"
    )
    return UsageError(
        f"{visible(name)} has no state after step {step}; {words}.", f"Name one: --from {visible(name)}@{near[0]}."
    )
