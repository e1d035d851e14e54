"""--from, --fresh and --skip-steps: what of them can be refused before anything starts, and the branch that is made then."""

from __future__ import annotations

from pathlib import Path

from samebits.errors import UsageError
from samebits.launcher.nodes.place import NodePlace
from samebits.launcher.states.branch import Branch, noted_parent
from samebits.machine.visible import visible
from samebits.protocol.branch import Parent, Source, fresh_names
from samebits.protocol.saving import check_name
from samebits.protocol.skipped_steps import OPTION, SkippedSteps


def check_branch(parent: str | None, name: str | None, fresh: str | None, skip_steps: str | None) -> None:
    """Raise `UsageError` for options that cannot be, on any machine."""
    fresh_names(fresh)
    skipped = SkippedSteps.parse(skip_steps)
    if parent is None:
        if fresh is not None:
            problem = (
                "--fresh takes options of the script instead of those of another run's state, and no run is named."
            )
            raise UsageError(
                problem, "Name it: --from exp1@1200. For a new interpreter in each rank: --start-method spawn."
            )
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
    """From the options to a branch.

    Args:
        parent: --from, if it was given.
        new: the folder of the run.
        place: which node this is.
        is_first: whether it may be the first one, on whose disk the states are.
        takes_any: whether a state will do that is not finite.
    """

    def __init__(self, parent: str | None, new: Path, place: NodePlace, *, is_first: bool, takes_any: bool) -> None:
        self._source = Source.parse(parent) if parent is not None else None
        self._new, self._is_alone, self._is_first = new, place.is_one_node, is_first
        self._branch = Branch(self._source, new, new.parent, takes_any) if self._source is not None else None

    def look(self) -> None:
        """Raise `UsageError` for what cannot be; nothing is made or changed."""
        if not self._is_alone:
            self._check_several_nodes()
        if self._branch is not None and self._is_first:
            self._branch.look()

    def begin(self, skipped: SkippedSteps) -> Parent | None:
        """Make the branch, unless it is made; returns the parent, of which a run that was one stays a branch."""
        if self._branch is None:
            return noted_parent(self._new)
        if not self._is_first:
            assert self._source is not None
            return Parent(self._branch.name, self._source.step or 0)
        parent = self._branch.begin()
        _check_ahead(skipped, parent.step)
        return parent

    def _check_several_nodes(self) -> None:
        """Only the first node can look at states, and all must know the step."""
        noted = noted_parent(self._new)
        if self._source is None and noted is not None:
            raise UsageError(
                f"{visible(self._new.name)} is a branch of {noted.text}, which only the node with its folder can see.",
                f"Give --from {visible(noted.run)}@{noted.step} on every node.",
            )
        if self._source is not None and self._source.step is None:
            problem = (
                "On several nodes --from needs the step, because only the first node can look which is the newest."
            )
            raise UsageError(
                problem, f"Write --from {visible(self._source.word)}@STEP; `samebits checkpoint ls` lists them."
            )
