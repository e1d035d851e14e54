"""What a script's source shows before its first line runs: whether it calls `samebits.init`, and whether it declares `--local_rank`."""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from samebits.launcher.request import LaunchRequest
from samebits.machine.regular_file import read_regular
from samebits.protocol.script_files import ScriptFiles, is_library

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
            # Python prints them when it runs the script.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    commands = {name for node in ast.walk(tree) for name in _subparser(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            if ast.unparse(node.func.value) in commands:
                # It belongs after the command, and is refused before it.
                continue
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
    try:
        path = module_file(script) if is_module else Path(script)
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


MOST_BYTES = 2 << 20
"""Of all files together; they are parsed while the nursery imports torch, at some 2 MB/s."""


def calls_init(request: LaunchRequest) -> bool:
    """Whether the request's script, module or function calls `samebits.init`."""
    if request.entry.call is not None:
        return request.entry.call.calls_init
    place = source_place(request.entry.script, request.entry.module)
    return place is not None and _init_of_script(*place)[0]


def source_place(script: Path | None, module: str | None) -> tuple[Path, Path] | None:
    """The file of a script or module, and the folder where its imports look first; None where there is no file."""
    file = script if script is not None else module_file(module or "")
    return None if file is None else (file, Path.cwd() if script is None else file.resolve().parent)


def file_calls_init(file: Path, folder: Path) -> bool:
    """Whether `file`, or what it imports, calls `samebits.init`.

    Args:
        file: Python source.
        folder: where its imports look first.
    """
    return _looked_for_init(file, folder)[0]


def file_has_lanes(file: Path, folder: Path) -> bool:
    """The same, or whether one of them imports an integration, whose Accelerator or Trainer calls it; one look for all runs."""
    return _init_of_script(file, folder)[1]


def _looked_for_init(file: Path, folder: Path) -> tuple[bool, bool]:
    """Whether `samebits.init` is called, and whether there are lanes."""
    has_lanes = False
    for _, source, tree in _sources(file, folder):
        if b"samebits" in source:
            if _calls_init(tree):
                return True, True
            has_lanes = has_lanes or _imports_integration(tree)
    return False, has_lanes


_init_of_script = cache(_looked_for_init)
"""Once for all the runs of a `verify`."""


def all_sources(file: Path, folder: Path) -> dict[Path, bytes]:
    """The text of a file and of what it imports that is not installed; empty where that is more than is looked at."""
    found = {path: source for path, source, _ in _sources(file, folder)}
    return found if sum(map(len, found.values())) < MOST_BYTES else {}


def _sources(file: Path, folder: Path) -> Iterator[tuple[Path, bytes, ast.Module]]:
    """The text and the tree of a file, and of what it imports that is not installed; the user's own files first."""
    users, seen, left = ScriptFiles.below(folder), {file}, MOST_BYTES
    own, others = deque([file]), deque[Path]()
    while (own or others) and left > 0:
        path = (own or others).popleft()
        try:
            source = read_regular(path, most_bytes=left)
        except OSError:
            continue
        left -= len(source)
        tree = _parsed(source)
        yield path, source, tree
        for found in _imported(tree, path, folder):
            if found not in seen:
                seen.add(found)
                (own if users.has(str(found.absolute())) else others).append(found)


def text_calls_init(source: str) -> bool:
    """The same for text that is in no file, such as cells of a notebook."""
    return _calls_init(_parsed(source.encode(errors="replace")))


@cache
def names_portable(file: Path, folder: Path) -> bool:
    """Whether `file`, or what it imports, has a `samebits.init(numerics="portable")` with the word itself; once for all runs.

    Args:
        file: Python source.
        folder: where its imports look first.
    """
    return any(b"portable" in source and _names_portable(tree) for _, source, tree in _sources(file, folder))


def text_names_portable(source: str) -> bool:
    """The same for text that is in no file."""
    return _names_portable(_parsed(source.encode(errors="replace")))


def _names_portable(tree: ast.Module) -> bool:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_init(node.func))
    words = (word for call in calls for word in call.keywords if word.arg == "numerics")
    return any(getattr(word.value, "value", None) == "portable" for word in words)


def _parsed(source: bytes) -> ast.Module:
    """An empty module for what is not Python."""
    try:
        with warnings.catch_warnings():
            # Python prints them when it runs the script.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _calls_init(tree: ast.Module) -> bool:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            whole = {one.asname or "samebits" for one in node.names if one.name == "samebits"}
            names |= whole | {"samebits" for one in node.names if one.name.startswith("samebits.") and not one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "samebits" and not node.level:
            names |= {"init" for one in node.names if one.name in ("init", "*")}
    return "init" in names or any(
        isinstance(node, ast.Attribute) and node.attr == "init" and getattr(node.value, "id", None) in names
        for node in ast.walk(tree)
    )


def _imports_integration(tree: ast.Module) -> bool:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    names = (name or "" for one in imports for name in (getattr(one, "module", None), *(own.name for own in one.names)))
    return any(name.startswith("samebits.integrations") for name in names)


def lanes_named(source: str) -> int | None:
    """The number in the source's only `samebits.init(lanes=8)`.

    None where that call may not be made, names a layout of ranks, or what it says is known only when the script runs.
    """
    tree = _parsed(source.encode(errors="replace"))
    if not _calls_init(tree):
        return None
    conditional = {id(node) for one in ast.walk(tree) if _is_condition(one) for node in ast.walk(one)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_init(node.func)]
    if len(calls) != 1 or id(calls[0]) in conditional:
        return None
    words = {word.arg: word.value for word in calls[0].keywords}
    lanes = getattr(words.get("lanes"), "value", None)
    return lanes if type(lanes) is int and not {None, "strategy", "mesh", "schedule"} & words.keys() else None


def _is_init(func: ast.expr) -> bool:
    return getattr(func, "attr", getattr(func, "id", "")) == "init"


def _is_condition(node: ast.AST) -> bool:
    """Whether what is below the node may not run; `if __name__ == "__main__"` always does."""
    is_main = isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ ==")
    return isinstance(node, (ast.If, ast.IfExp, ast.Try, ast.Match, ast.BoolOp)) and not is_main


def _imported(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Files that are not installed and that the imports of `path` may mean: statements, and `import_module("own")`."""
    for node in ast.walk(tree):
        for top, *below in (name.split(".") for name in _names(node)):
            yield from _files(_roots(top, folder), below)
        if isinstance(node, ast.ImportFrom):
            words = node.module.split(".") if node.module else []
            if node.level:
                roots: Sequence[Path] = path.parents[node.level - 1 : node.level]
            else:
                roots, words = _roots(words[0], folder), words[1:]
            for one in node.names:
                yield from _files(roots, [*words, one.name])


def _names(node: ast.AST) -> list[str]:
    """Names of modules that `import` or `importlib.import_module` loads."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    func = getattr(node, "func", None)
    if getattr(func, "attr", getattr(func, "id", "")) not in ("import_module", "__import__"):
        return []
    first = getattr(node.args[0], "value", "") if isinstance(node, ast.Call) and node.args else ""
    return [first] if isinstance(first, str) and not first.startswith(".") and first else []


def _files(roots: Iterable[Path], words: Sequence[str]) -> Iterator[Path]:
    """Those of a dotted name below each root: every package on the way, and the module."""
    for root in roots:
        for depth in range(len(words) + 1):
            place = root.joinpath(*words[:depth])
            yield from filter(Path.is_file, (place / "__init__.py", place.with_name(f"{place.name}.py")))


def _roots(top: str, folder: Path) -> Sequence[Path]:
    """Where a top-level name leads, without a suffix; nowhere if that is a library. PYTHONPATH and editable installs count."""
    # The script's folder comes first in sys.path, so its modules hide libraries of the same name.
    if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
        return [folder / top]
    if top == "samebits" or top in sys.stdlib_module_names:
        return ()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ()
    if spec is None:
        return ()
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if not places and spec.origin is not None and spec.has_location:
        places = [Path(spec.origin).with_suffix("")]
    return [place for place in places if not is_library(str(place))]
