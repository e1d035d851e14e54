"""The user's code that is running: its frames, their variables, the modules beside the script."""

from __future__ import annotations

import ast
import dis
import functools
import sys
from collections.abc import Iterator, Mapping
from inspect import CO_GENERATOR, CO_OPTIMIZED
from types import FrameType, FunctionType, ModuleType
from typing import Any

from samebits.protocol.script_files import PACKAGE, running_script
from samebits.rank.caller import short
from samebits.rank.look.source import read_behind, scope_of, tree, writes_uncounted


def script_frames() -> Iterator[FrameType]:
    """The frames of the user's code above the caller, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to see the script's variables
    while frame is not None:
        if is_a_frame_of_the_script(frame):
            yield frame
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                return  # what runs the script is around it
        frame = frame.f_back


def assigned_at(name: str) -> str:
    """The script's first line that assigns an attribute of another object than `self`; empty where there is none."""
    for file in dict.fromkeys(frame.f_code.co_filename for frame in script_frames()):
        found = [one for one in ast.walk(tree(file) or ast.Module([], [])) if isinstance(one, ast.Attribute)]
        stored = [one.lineno for one in found if one.attr == name and isinstance(one.ctx, ast.Store)]
        of_self = {one.lineno for one in found if isinstance(one.value, ast.Name) and one.value.id == "self"}
        if lines := [line for line in stored if line not in of_self]:
            return short(file, min(lines))
    return ""


def is_a_frame_of_the_script(frame: FrameType) -> bool:
    """Whether it runs the user's code: neither ours nor a library's; but a module run with -m may be installed."""
    file = frame.f_code.co_filename
    is_main = frame.f_globals.get("__name__") == "__main__" and not file.startswith(PACKAGE)
    return is_main or is_the_users(file)


def is_the_users(file: str) -> bool:
    """Whether a source file belongs to the script that this process runs."""
    return running_script().has(file)


def is_a_class_of_the_users(kind: type) -> bool:
    """Whether the script, or a module beside it, defines a class."""
    return type.__getattribute__(kind, "__module__") == "__main__" or is_the_users(file_of_class(kind))


def file_of_class(kind: type) -> str:
    """The source file of a class's module; empty where there is none."""
    module = type.__getattribute__(kind, "__module__")
    return _file_of(sys.modules.get(module) if isinstance(module, str) else None)


@functools.lru_cache(64)
def stored_by_libraries(kind: Any) -> frozenset[str]:
    """Attributes that methods of a class's libraries store: their own. Read from the code's words: `dis` takes ten times as long."""
    theirs = [one for one in type.__dict__["__mro__"].__get__(kind) if not is_a_class_of_the_users(one)]
    parts = [part for one in theirs for part in type.__dict__["__dict__"].__get__(one).values()]
    parts += [part.fset for part in parts if type(part) is property]
    codes, stores = [part.__code__ for part in parts if type(part) is FunctionType], dis.opmap["STORE_ATTR"]
    words = [(code.co_names, zip(code.co_code[::2], code.co_code[1::2], strict=True)) for code in codes]
    return frozenset(names[at] for names, pairs in words for word, at in pairs if word == stores and at < len(names))


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """A copy of a frame's local variables, which keeps nothing alive once it is dropped."""
    variables = frame.f_locals
    found = dict(variables)
    # [Note: why the dictionary of a frame is emptied]
    # Up to Python 3.12 a function's frame keeps the dictionary that it made for us, and so every object in it, as long as it runs. It is
    # made anew whenever somebody asks for it. Where the script itself holds it (`kept = locals()`), it stays as it is.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(variables) <= _OURS:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)  # what `exec` has put there beside them stays
    return found


_OURS = 3
"""References to such a dictionary: the frame's, our variable's, and that of the call which counts."""


def modules_of_the_script() -> Iterator[ModuleType]:
    """Modules of the user's files, the running script not among them."""
    for name in [name for name in list(sys.modules) if name not in _FOREIGN]:
        module = sys.modules.get(name)
        if name == "__main__" or module is None or not is_the_users(_file_of(module)):
            _FOREIGN.add(name)
        else:
            yield module


def may_write_uncounted() -> bool:
    """Whether the user's source writes to tensors past their counters of writes; where it is unreadable it may."""
    files = {frame.f_code.co_filename for frame in script_frames()}
    trees = [tree(file) for file in files | {_file_of(module) for module in modules_of_the_script()}]
    return any(one is None or writes_uncounted(one) for one in trees)


def read_behind_its_loop() -> frozenset[str]:
    """Names that the script reads behind the loop around the caller and that the loop assigns; "" where its source is unreadable."""
    for frame in script_frames():
        if scope_of(frame.f_code) is None:
            return frozenset({""})
        if names := read_behind(frame.f_code, frame.f_lineno):
            return names
        # The loop that asks a generator for its next turn is in its caller.
        if not frame.f_code.co_flags & CO_GENERATOR:
            break
    return frozenset()


_FOREIGN: set[str] = set()
"""Names of modules that are not; there are thousands."""


def _file_of(module: Any) -> str:
    """Asked past a module's own `__getattr__`, which would be the script's code, or a library's."""
    is_module = issubclass(type(module), ModuleType)
    file = object.__getattribute__(module, "__dict__").get("__file__") if is_module else None
    return file if isinstance(file, str) else ""
