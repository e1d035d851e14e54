"""Another commit of the script's repository, in a worktree of its own, with the files that git does not know linked in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import UsageError

PLACE = "commit"
"""The worktree, in the folder of the runs."""
QUIET = ("-c", f"core.hooksPath={os.devnull}")
"""No hook of the user's runs for a folder that is soon gone."""
POINTER = b"version https://git-lfs.github.com/spec/"
SUBMODULE = "160000"
"""As git lists one in a tree."""


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
        UsageError: where there is no repository, no such commit, or not all of it.
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
    try:
        problem, fix = f"{short} cannot be checked out.", f"Try `git worktree add FOLDER {short}`."
        _git(root, *QUIET, "worktree", "add", "--detach", "--force", str(place), short, problem=problem, fix=fix)
        _check_out_submodules(root, short, place)
        _check_large_files(root, short, place)
        _link_unknown(root, place)
        yield Commit(short, place / here.relative_to(root.resolve()), root.resolve(), place)
    finally:
        with suppress(UsageError):
            _git(root, "worktree", "remove", "--force", str(place), problem="")


def _check_out_submodules(root: Path, commit: str, place: Path) -> None:
    """Lay the submodules of a tree below its worktree, from what lies here: git's own command would ask the network."""
    text = _git(root, "ls-tree", "-r", "-z", commit, problem=f"git cannot list {commit}.")
    for mode, _, rest in (line.partition(" ") for line in text.split("\0")):
        if mode != SUBMODULE:
            continue
        wanted, _, name = rest.removeprefix("commit ").partition("\t")
        own, there = root / name, place / name
        if not (own / ".git").exists():
            if own.is_dir():
                # It has not been initialized here, so neither side has it.
                continue
            raise UsageError(f"{commit} has the submodule {name}, but this tree does not.", "Name a later commit.")
        problem, fix = f"The submodule {name} has no commit {wanted[:12]} here.", f"Write `git -C {own} fetch`."
        index = {"GIT_INDEX_FILE": str(place.with_name("index"))}
        _git(own, *QUIET, "read-tree", wanted, problem=problem, fix=fix, variables=index)
        _git(own, *QUIET, "checkout-index", "-a", "-f", f"--prefix={there}/", problem=problem, fix=fix, variables=index)
        _check_out_submodules(own, wanted, there)
        _link_unknown(own, there)


def _check_large_files(root: Path, commit: str, place: Path) -> None:
    """Raise UsageError where Git LFS has left a pointer for a file that is whole here: the sides would read other data."""
    text = _git(place, "ls-files", "-z", ":(attr:filter=lfs)", problem="git cannot list the files of Git LFS.")
    for name in filter(None, text.split("\0")):
        if _is_pointer(place / name) and (root / name).is_file() and not _is_pointer(root / name):
            problem = f"{name} of {commit} is not here: Git LFS has not fetched it."
            raise UsageError(problem, f"Write `git lfs fetch origin {commit}`.")


def _is_pointer(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER


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


def _git(
    folder: Path,
    *words: str,
    problem: str,
    fix: str = "Name a commit of the repository in which you are.",
    variables: Mapping[str, str] | None = None,
) -> str:
    try:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, **(variables or {})}
        )
    except FileNotFoundError:
        raise UsageError("--against-commit needs git, which is not installed.", "Install git.") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()
        why = f" (git: {last[-1]})" if last else ""
        raise UsageError(f"{problem.rstrip('.')}{why}.", fix) from None
    return done.stdout.rstrip("\n")
