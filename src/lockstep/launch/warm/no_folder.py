"""Why no nursery can wait here: there is no folder for its socket that only this user can enter."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.launch.warm.place import make_folder, may_make, open_folder, places

ANOTHER = "set XDG_RUNTIME_DIR to a folder that only you can enter."


def check_folder(variables: Mapping[str, str]) -> None:
    """Make the folder where it is not there.

    Raises:
        UsageError: when there is none that only this user can enter.
    """
    found = make_folder(variables)
    if found is None:
        where = ", ".join(places(variables, os.geteuid()))
        raise no_folder(variables) or _mistake(f"none can be made ({where})", _capital(ANOTHER))
    os.close(found[0])


def no_folder(variables: Mapping[str, str]) -> UsageError | None:
    """What is wrong with the folder that it would be, and the fix; None where there is one, or one can be made. Makes none."""
    troubles, runtime = [], f"/run/user/{os.geteuid()}"  # which many systems do not have
    for path in map(Path, places(variables, os.geteuid())):
        trouble = _trouble(path)
        if trouble is None:
            return None
        if trouble[0] or str(path.parent) != runtime:
            troubles.append(trouble)
    if not troubles:
        return _mistake("HOME is not set, so there is none", _capital(ANOTHER))
    # What is there and will not do is easily mended. Else the user's own folder, which is the last, says most.
    return next((mistake for is_there, mistake in troubles if is_there), troubles[-1][1])


def _trouble(path: Path) -> tuple[bool, UsageError] | None:
    """Whether the folder is there, and why it will not do; None when it will."""
    if (folder := open_folder(str(path))) is not None:
        os.close(folder)
        return None
    try:
        found = path.lstat()
    except OSError as error:
        trouble = _unmade(path, error)
        return None if trouble is None else (False, trouble)
    move = f"Move it away, or {ANOTHER}"
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no folder"
        return True, _mistake(f"{path} is {kind}", move)
    if found.st_uid != os.geteuid():
        return True, _mistake(f"{path} belongs to user {found.st_uid}", move)
    if found.st_mode & 0o077:
        return True, _mistake(
            f"others can enter {path}, whose mode is {found.st_mode & 0o777:04o}", f"Run `chmod 700 {path}`."
        )
    return True, _mistake(f"{path} cannot be opened", move)


def _unmade(path: Path, error: OSError) -> UsageError | None:
    """Why the folder, which is not there, cannot be made; None when it can."""
    above = path.parent
    if above.name == ".cache" and not os.path.lexists(above):
        above = above.parent
    if not isinstance(error, FileNotFoundError):
        return _mistake(f"{path} cannot be reached ({error.strerror})", _capital(ANOTHER))
    if not above.is_dir():
        return _mistake(f"{above} is not there", f"Make it, or {ANOTHER}")
    if not may_make(str(above)):
        return _mistake(f"{above} belongs to user {above.stat().st_uid}", _capital(ANOTHER))
    if not os.access(above, os.W_OK | os.X_OK):
        return _mistake(f"{above} cannot be written to", _capital(ANOTHER))
    return None


def _mistake(what: str, fix: str) -> UsageError:
    return UsageError(f"A process that waits needs a folder that only you can enter, but {what}.", fix)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
