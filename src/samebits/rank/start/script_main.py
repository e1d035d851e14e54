"""Run a script or a module as `python SCRIPT` or `python -m MODULE` would: as a real module `__main__`.

Pickle, `multiprocessing` with spawn, and libraries that look at `__main__` then find what they expect. The random streams
of a script that calls `samebits.init` are fixed before its first line; any other script is seeded by the system.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import pickle
import random
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from samebits.errors import UsageError
from samebits.machine.regular_file import read_regular
from samebits.notices import say
from samebits.protocol.rank_task import Header
from samebits.rank.start.guards.wrapping import when_imported

Program = Callable[[], None]


def script_program(script: str, args: tuple[str, ...]) -> Program:
    """Set up argv, the import path and `__main__` for `script`; the result runs it.

    Raises:
        UsageError: when the script cannot be read.
        SyntaxError: when it is not Python.
    """
    path = str(Path(script).absolute())
    try:
        source = read_regular(path)
    except OSError as error:
        raise UsageError(f"The script {script} cannot be read: {error.strerror}.", "Check the path.") from None
    sys.argv[:] = [script, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    main = _new_main()
    main.__dict__.update(__file__=path, __cached__=None)
    code = compile(source, path, "exec", dont_inherit=True)
    return _runner(code, main)


def module_program(module: str, args: tuple[str, ...]) -> Program:
    """Do the same for a module or a package with `__main__`; its parent packages are imported here.

    Raises:
        UsageError: when there is no such module, or it cannot be run.
    """
    sys.path.insert(0, str(Path.cwd()))
    spec = _find(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{module}.__main__")
    loader = spec.loader if spec is not None else None
    get_code: Callable[[str], CodeType | None] | None = getattr(loader, "get_code", None)
    code = get_code(spec.name) if spec is not None and get_code is not None else None
    if spec is None or code is None:
        raise UsageError(f"There is no module {module} that can be run.", "Check the name, or the working directory.")
    sys.argv[:] = [spec.origin or module, *args]
    main = _new_main()
    main.__dict__.update(
        __file__=spec.origin, __cached__=spec.cached, __spec__=spec, __loader__=loader, __package__=spec.parent
    )
    return _runner(code, main)


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            return None
        raise


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __package__=None)
    sys.modules["__main__"] = main
    return main


def _runner(code: CodeType, main: ModuleType) -> Program:
    def run() -> None:
        exec(code, main.__dict__)  # noqa: S102 - running the person's script is the purpose

    return run


def function_program(parcel: str, rank: int, folder: str) -> Program:
    """Set up the import path, the working directory and `__main__`; the result calls `function(rank, *args)` from a packed call."""
    os.chdir(folder)
    with Path(parcel).open("rb") as file:
        header: Header = pickle.load(file)  # noqa: S301 - written by the caller, who is this person
    sys.path[:] = header.path
    sys.argv[:] = header.argv
    for name, lines in header.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __package__=None, __file__=header.main_file)
    sys.modules["__main__"] = main

    def run() -> None:
        function, args = pickle.loads(header.call)  # noqa: S301
        _know_names(main, function)
        function(rank, *args)

    return run


def _know_names(main: ModuleType, function: Any) -> None:
    """Put the names of the caller's `__main__` that were sent along into `main`."""
    if getattr(function, "__module__", None) == "__main__":
        for name, value in getattr(function, "__globals__", {}).items():
            main.__dict__.setdefault(name, value)


# [Note: who needs equal streams]
# Ranks make equal models before `samebits.init` too, if they draw the same. A script that never calls it is left as under
# torchrun. A fork shares the nursery's generators, so there they are seeded anew; what the script imports seeds itself.
SEED = 0
TORCHS = SEED + (1 << 32)
"""The stream of seed 0 too: torch's CPU generator takes the lower half. The whole tells it from `torch.manual_seed(0)`."""


def start_streams(*, fixed: bool) -> None:
    """Seed the streams of Python, NumPy and torch, as soon as they are imported: `fixed`, or by the system."""
    random.seed(SEED if fixed else None)
    if fixed:
        when_imported("numpy", lambda numpy: numpy.random.seed(SEED))
        when_imported("torch", lambda torch: torch.default_generator.manual_seed(TORCHS))
        return
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def say_equal_draws() -> None:
    """Say at the end of a script what the fixed streams did to it, if it drew from torch's without `samebits.init` or a seed."""
    torch = sys.modules.get("torch")
    if torch is None or torch.default_generator.initial_seed() != TORCHS:
        return
    untouched = torch.Generator().manual_seed(TORCHS).get_state()
    if not torch.equal(torch.default_generator.get_state(), untouched):
        say(
            "every rank drew the same random numbers: the script has samebits.init in its source, but did not call it. Give "
            "each rank a seed: torch.manual_seed(seed + rank)."
        )
