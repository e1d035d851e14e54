"""Whether a script or a module can be run, as far as that can be told without running or importing anything."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.launcher.legacy_local_rank import module_file
from lockstep.machine.regular_file import read_regular
from lockstep.machine.visible import visible

MOST_BYTES = 16 << 20
"""No script is larger; what is, is told by the ranks."""


def check_python(path: Path) -> None:
    """Raise `UsageError` for a file that Python cannot compile: then no rank has to start to say so.

    Raises:
        OSError: when it cannot be read.
    """
    name = visible(path)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{name} is a notebook, not a script.",
            "Call lockstep.spawn in it, or convert it: jupyter nbconvert --to script.",
        )
    source = read_regular(path, most_bytes=MOST_BYTES)
    if b"\0" in source:
        raise UsageError(f"{name} is not Python source: it has zero bytes.", "Give the script as text.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python says them when it runs the script
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(f"{name} is not Python: {_what(error)}.", "Check that line; no rank was started.") from None
    except (ValueError, RecursionError, MemoryError):  # the ranks may have more room
        return


def _what(error: SyntaxError) -> str:
    """`line 2: invalid syntax: def f(:`."""
    text = (error.text or "").strip()
    shown = f": {text if len(text) <= 60 else f'{text[:57]}...'}" if text else ""
    return visible(f"{f'line {error.lineno}: ' if error.lineno else ''}{error.msg}{shown}")


def check_module(module: str) -> None:
    """Raise `UsageError` where there is no such module, it cannot be run, or it is not Python."""
    if module.endswith(".py") and Path(module).is_file():
        raise UsageError(f"{module} is a script, but -m takes a module.", "Give one of them: leave out -m.")
    if not is_module_here(module):
        raise UsageError(f"There is no module {module} here.", "Check the name, or the working directory.")
    if _is_missing(module):
        raise UsageError(
            f"There is no module {module} that can be run.", "Check the name; a package needs __main__.py."
        )
    file = module_file(module)
    if file is not None:
        check_python(file)


def is_module_here(name: str) -> bool:
    """Whether its top level can be found; its packages are not imported here."""
    top, *rest = name.split(".")
    if not all(word.isidentifier() for word in (top, *rest)):
        return False
    here = Path(top)
    return here.is_dir() or here.with_suffix(".py").is_file() or importlib.util.find_spec(top) is not None


def _is_missing(module: str) -> bool:
    """Whether it is surely not there, or a package without `__main__`; parents that look elsewhere may have anything."""
    folders, words = [str(Path.cwd()), *sys.path], [*module.split("."), "__main__"]
    for number, word in enumerate(words):
        spec = PathFinder.find_spec(word, folders)
        if spec is None:
            return number > 0  # other finders may know a top level
        if spec.submodule_search_locations is None:
            return number < len(words) - 2
        if spec.origin is not None and b"__path__" in read_regular(spec.origin, most_bytes=MOST_BYTES):
            return False
        folders = list(spec.submodule_search_locations)
    return False
