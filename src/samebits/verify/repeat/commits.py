"""Another commit of the script's repository, in a worktree of its own, with the files that git does not know linked in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import UsageError

PLACE = "commit"
"""The worktree, in the folder of the runs."""


@dataclass(frozen=True)
class Commit:
    """A commit's worktree."""

    name: str
    """The short one."""
    folder: Path
    """What is the working directory here."""
    root: Path
    """The top of this tree."""
    place: Path
    """The top of the commit's."""


@contextmanager
def worktree(revision: str | None, script: Path | None, base: Path) -> Iterator[Commit | None]:
    """The commit in a worktree; None where no revision is named.

    Raises:
        UsageError: where there is no repository, or no such commit.
    """
    if not revision:
        yield None
        return
    here = Path.cwd().resolve()
    if script is not None and script.is_absolute():
        raise UsageError(
            f"--against-commit needs a script by its relative path, but {script} is absolute.",
            "Name it from the folder in which you are.",
        )
    root = Path(_git(here, "rev-parse", "--show-toplevel", problem="--against-commit needs a git repository."))
    problem = f"--against-commit {revision} is not a commit of {root}."
    short = _git(root, "rev-parse", "--short", "--verify", f"{revision}^{{commit}}", problem=problem)
    _forget_killed(root, base)
    place = base / PLACE
    # No hook of the user's runs for a folder that is soon gone.
    quiet = ("-c", f"core.hooksPath={os.devnull}")
    _git(root, *quiet, "worktree", "add", "--detach", "--force", str(place), short, problem=problem)
    try:
        _link_unknown(root, place)
        yield Commit(short, place / here.relative_to(root.resolve()), root.resolve(), place)
    finally:
        with suppress(UsageError):
            _git(root, "worktree", "remove", "--force", str(place), problem="")


def _forget_killed(root: Path, base: Path) -> None:
    """Have git forget the worktrees of commands that were killed outright, whose folders are gone."""
    for line in _git(root, "worktree", "list", "--porcelain", problem="git cannot list its worktrees.").splitlines():
        place = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and place.name == PLACE and _is_like(place.parent, base) and not place.exists():
            with suppress(UsageError):
                _git(root, "worktree", "remove", "--force", str(place), problem="")


def _is_like(folder: Path, base: Path) -> bool:
    """Whether both are folders of runs: their names differ in a random part only."""
    return folder.parent == base.parent and folder.name.rpartition("-")[0] == base.name.rpartition("-")[0]


def _link_unknown(root: Path, place: Path) -> None:
    """Link what git does not know, as data sets are: the commit sees what lies here."""
    text = _git(root, "ls-files", "--others", "--directory", "-z", problem="git cannot list the files here.")
    for name in filter(None, text.split("\0")):
        there, link = root / name.rstrip("/"), place / name.rstrip("/")
        # Compiled code of this tree would pass for the commit's where both files have one size and one second.
        if there.name != "__pycache__" and not link.exists() and link.parent.is_dir():
            # Python looks for modules beside the file that a link to a script names, which would be those of this tree.
            if there.suffix == ".py" and there.is_file():
                shutil.copy2(there, link)
            else:
                link.symlink_to(there)


def _git(folder: Path, *words: str, problem: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UsageError("--against-commit needs git, which is not installed.", "Install git.") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()
        why = f" (git: {last[-1]})" if last else ""
        raise UsageError(f"{problem.rstrip('.')}{why}.", "Name a commit of the repository in which you are.") from None
    return done.stdout.rstrip("\n")
