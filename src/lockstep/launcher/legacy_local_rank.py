"""`--local_rank`, as torch.distributed.launch gave it to every script: passed only to a script that declares it.

torch.distributed.launch always passed `--local_rank=N` (since torch 2.0 `--local-rank=N`), and a script that did not
know that spelling ended with "unrecognized arguments". Here the script's source is read, not run.
"""

from __future__ import annotations

import ast
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path

from lockstep.machine.regular_file import read_regular

SPELLINGS = ("--local_rank", "--local-rank")


def local_rank_option(source: str | None, args: Sequence[str], use_env: bool | None) -> str:
    """The option to give to each rank in front of its arguments, without the number; empty when none is due.

    Args:
        source: the script's text; None when it cannot be read.
        args: what the user gave to the script; an option that is already there is not given twice.
        use_env: torch.distributed.launch's switch: True never, False always, None if the script declares it.
    """
    if use_env or any(word.partition("=")[0] in SPELLINGS for word in args):
        return ""
    declared = declared_option(source) if source is not None else ""
    return declared or (SPELLINGS[1] if use_env is False else "")


def declared_option(source: str) -> str:
    """The spelling in an `add_argument("--local_rank", ...)` of this source; empty without one."""
    if "local" not in source:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python says them when it runs the script
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    commands = {name for node in ast.walk(tree) for name in _subparser(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            if ast.unparse(node.func.value) in commands:
                continue  # it belongs after the command, and before it would be refused
            for word in node.args:
                if isinstance(word, ast.Constant) and word.value in SPELLINGS:
                    return str(word.value)
    return ""


def _subparser(node: ast.AST) -> list[str]:
    """The names to which the node assigns an `add_parser(...)`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return []
    made = node.value.func
    return [ast.unparse(target) for target in node.targets] if getattr(made, "attr", "") == "add_parser" else []


def source_of(script: str, is_module: bool) -> str | None:
    """The text of a script, or of a module or package with `__main__`; None when it cannot be read. Imports nothing."""
    path = module_file(script) if is_module else Path(script)
    try:
        return read_regular(path).decode(errors="replace") if path is not None else None
    except OSError:
        return None


def module_file(module: str) -> Path | None:
    """Find it by path, from the working directory or an installed top-level package."""
    top, *rest = module.split(".")
    roots = [Path(top)]
    spec = None if Path(top).exists() else importlib.util.find_spec(top)
    if spec is not None:
        roots += [Path(folder) for folder in spec.submodule_search_locations or ()]
    for root in roots:
        place = root.joinpath(*rest)
        for file in (place.with_suffix(".py"), place / "__main__.py"):
            if file.is_file():
                return file
    return None
