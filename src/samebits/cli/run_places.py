"""Where a run, its states and its record go, and from which run's state it begins: --name, --states, --from, --skip-steps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from samebits.errors import UsageError
from samebits.launcher.folder import reserve_run_folder
from samebits.launcher.nodes.place import NodePlace
from samebits.launcher.states.branch import Branch, noted_parent
from samebits.launcher.supervise.joining import may_be_first, node_name
from samebits.machine.visible import visible
from samebits.protocol.branch import Course, Parent, Source, fresh_names
from samebits.protocol.run_folder import STATES, runs_folder
from samebits.protocol.saving import Saving, check_name, claim
from samebits.protocol.skipped_steps import OPTION, SkippedSteps
from samebits.protocol.url import below


def check_branch(parent: str | None, name: str | None, fresh: str | None, skip_steps: str | None) -> None:
    """Raise `UsageError` for options that cannot be, on any machine."""
    fresh_names(fresh)
    skipped = SkippedSteps.parse(skip_steps)
    if parent is None:
        if fresh is not None:
            problem = (
                "--fresh takes options of the script instead of those of another run's state, and no run is named."
            )
            raise UsageError(problem, "Name it: --from exp1@1200. For new interpreters as ranks: --start-method spawn.")
        return
    source = Source.parse(parent)
    if name is None:
        raise UsageError("--from needs a name for the new run.", "Add --name exp2.")
    check_name(name)
    if source.step is not None:
        _check_ahead(skipped, source.step)


def _check_ahead(skipped: SkippedSteps, step: int) -> None:
    if behind := skipped.until(step):
        raise UsageError(
            f"{OPTION} names {behind.text}, and the branch begins after step {step}.",
            "Name steps that are still to come.",
        )


class Branching:
    """From the options to a run's course, and to the branch that it may be.

    Args:
        parent: --from, if it was given.
        fresh: --fresh.
        skip_steps: --skip-steps.
        takes_any: whether a state will do that is not finite.
    """

    def __init__(self, parent: str | None, fresh: str | None, skip_steps: str | None, *, takes_any: bool) -> None:
        self._source = Source.parse(parent) if parent is not None else None
        self._takes_any = takes_any
        self.course = Course(None, fresh_names(fresh), SkippedSteps.parse(skip_steps))
        """Without the parent."""

    @property
    def is_asked(self) -> bool:
        """Whether the run is to begin with a state of another one."""
        return self._source is not None

    def look(self, new: Path, *, is_alone: bool, is_first: bool) -> None:
        """Raise `UsageError` for what cannot be; nothing is made or changed.

        Args:
            new: the folder of the run.
            is_alone: whether it has one node.
            is_first: whether this may be the first one, on whose disk the states are.
        """
        if not is_alone:
            self._check_several_nodes(new)
        if self._source is not None and is_first:
            self._branch(new, self._source).look()

    def begin(self, new: Path, *, is_first: bool) -> Course:
        """Make the branch, unless it is made. A run that was one stays one."""
        fresh, skipped = self.course.fresh, self.course.skipped
        if self._source is None:
            return Course(noted_parent(new), fresh, skipped)
        branch = self._branch(new, self._source)
        if not is_first:
            return Course(Parent(branch.name, self._source.step or 0), fresh, skipped)
        parent = branch.begin()
        _check_ahead(skipped, parent.step)
        return Course(parent, fresh, skipped)

    def _branch(self, new: Path, source: Source) -> Branch:
        return Branch(source, new, new.parent, self._takes_any)

    def _check_several_nodes(self, new: Path) -> None:
        """Only the first node can look at states, and all must know the step."""
        noted, source = noted_parent(new), self._source
        if source is None and noted is not None:
            raise UsageError(
                f"{visible(new.name)} is a branch of {noted.text}, which only the node with its folder can see.",
                f"Give --from {visible(noted.run)}@{noted.step} on every node.",
            )
        if source is not None and source.step is None:
            raise UsageError(
                "On several nodes --from needs the step, because only the first node can look which is the newest.",
                f"Write --from {visible(source.word)}@STEP; `samebits checkpoint ls` lists them.",
            )


@dataclass(frozen=True)
class PlaceWish:
    """What the options say about folders."""

    script: str
    name: str | None
    log_dir: str | None
    save_every: str | None
    keep: int | None
    states: str | None


def places_of(wish: PlaceWish, place: NodePlace, branching: Branching) -> tuple[Path, Path, Saving | None, Course]:
    """A run folder, the folder in which it is, where the run saves by itself, and what it begins with and passes over.

    A name belongs to the run's first node.
    """
    is_first = place.is_one_node or may_be_first(place)
    base, saving, course = _held(wish, place, branching, is_first=is_first)
    name, title = wish.name if saving is None else None, wish.script
    if name is not None and not is_first:
        check_name(name)
        name, title = None, f"{name}-{node_name(place)}"
    return reserve_run_folder(base, name, title, datetime.now().astimezone()), base, saving, course


def _held(
    wish: PlaceWish, place: NodePlace, branching: Branching, *, is_first: bool
) -> tuple[Path, Saving | None, Course]:
    """Where run folders go; a run that has states has a place of its own, which its first node now holds."""
    base = Path(wish.log_dir) if wish.log_dir else runs_folder(os.environ)
    # `check_saving` and `check_branch` have refused states without a name.
    if wish.name is None or (wish.save_every is None and not branching.is_asked):
        return base, None, branching.course
    base /= wish.name
    branching.look(base, is_alone=place.is_one_node, is_first=is_first)
    claim(base, is_first=is_first)
    course = branching.begin(base, is_first=is_first)
    url = below(wish.states, wish.name) if wish.states is not None else ""
    return base, Saving(str((base / STATES).absolute()), wish.save_every or "", wish.keep, url), course
