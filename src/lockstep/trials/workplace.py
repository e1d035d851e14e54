"""Where the runs of `verify` and `bench` see and write files, so that the user's own stay as they are.

The best is a private view, which the nursery makes for each run. Where the system gives none, each run works in a copy
of the working directory. With `in_place`, runs write where the script says. What cannot be kept apart is said before
the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import WorldError
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.machine.private_view import remove_tree
from lockstep.trials.folder_copy import Selection, copy_folder, extents_of, select, size_text

MAX_NAMED = 4


@dataclass(frozen=True)
class Workplace:
    """The workplace of one run."""

    folder: Path | None = None
    """The working directory; None: that of this process."""
    original: Path | None = None
    """What `folder` is a copy of."""

    def script(self, path: Path | None) -> Path | None:
        """Where the script is there."""
        if path is None or self.folder is None or self.original is None or not path.is_absolute():
            return path
        inside = path.resolve().is_relative_to(self.original)
        return self.folder / path.resolve().relative_to(self.original) if inside else path

    def said_as_original(self, text: str) -> str:
        """A message of the run with the user's own paths."""
        return text if self.folder is None else text.replace(str(self.folder), str(self.original))


class Workplaces:
    """The workplaces of all runs, one for each.

    Args:
        nursery: makes the views.
        base: a folder of its own, without links in its path.
        in_place: whether runs write where the script says.
        note: called with what cannot be kept apart, before the first run.
    """

    def __init__(self, nursery: NurseryHandle, base: Path, in_place: bool, note: Callable[[str], None]) -> None:
        self._nursery, self._note = nursery, note
        self._layers, self._copy = base / "layers", base / "copy"
        self._viewed: bool | None = False if in_place else None
        """None until the first view was tried."""
        self._copied = not in_place
        self._selection: Selection | None = None
        self._current, self._runs_left = Workplace(), 0

    def begin(self, num_runs: int = 1) -> Workplace:
        """Make a workplace for the next runs, which see each other's files; or return theirs.

        Raises:
            WorldError: when there is no private view although there was one.
        """
        if not self._runs_left:
            self.remove()
            self._runs_left, self._current = num_runs, self._made(num_runs)
        return self._current

    def end(self) -> None:
        """A run has ended: remove what it wrote, unless another one goes on with it."""
        self._runs_left = max(self._runs_left - 1, 0)
        if not self._runs_left:
            self.remove()

    def remove(self) -> None:
        """Remove what the last runs wrote."""
        self._runs_left = 0
        for folder in (self._layers, self._copy):
            remove_tree(folder)

    def _made(self, num_runs: int) -> Workplace:
        if self._viewed is not False:
            problem = self._try_view(num_runs)
            if not problem:
                return Workplace()
            if self._viewed:
                raise WorldError(f"The private view of the files could not be made again: {problem}.")
            self._viewed = False
            self._say_copy(problem)
        if not self._copied:
            return Workplace()
        here = Path.cwd().resolve()
        self._copy.mkdir()
        assert self._selection is not None
        return Workplace(copy_folder(here, self._selection, self._copy), here)

    def _try_view(self, num_runs: int) -> str:
        """Try to make a private view for the next runs; why there is none, or empty."""
        self._layers.mkdir(mode=0o700)
        report = self._nursery.make_view(self._layers, num_runs)
        if not report.problem and self._viewed is None and report.real:
            self._note(
                f"The runs write to copies of all files except these, which they really change: {_listed(report.real)}."
            )
        self._viewed = self._viewed or (None if report.problem else True)
        return report.problem

    def _say_copy(self, problem: str) -> None:
        here = Path.cwd().resolve()
        extents = extents_of(here)
        self._selection = select(extents)
        large = [f"{name} ({size_text(extents[name])})" for name in self._selection.linked]
        linked = f" Too large to copy, only linked: {_listed(large)}." if large else ""
        self._note(
            f"This system has no private views of files ({problem}), so each run works in a copy of this "
            f"folder.{linked} Writes {'there or ' * bool(large)}outside this folder are real. To run the script in "
            f"place, add --in-place."
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
