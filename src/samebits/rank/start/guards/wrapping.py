"""How a function of torch is replaced by one of ours that looks at a call and hands it on.

What stands in `torch.distributed` may be a library's own function that takes anything and hands it on.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call `action(module)` now or right after the module's own code has run, once."""
    # A forked rank has torch already. A fresh one must not import it before the script has made its settings.
    if name in sys.modules:
        action(sys.modules[name])
        return
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Waiting)), None)
    if finder is None:
        finder = _Waiting()
        sys.meta_path.insert(0, finder)
    finder.actions.setdefault(name, []).append(action)


def put_in_place(module: ModuleType, name: str, replacement: Any) -> None:
    """Put `replacement` where `module` has `name`, and where modules of its package have taken it from there."""
    original = getattr(module, name)
    # `from torch.distributed.distributed_c10d import *` has copied the name into the package's other modules.
    package = module.__name__.rpartition(".")[0]
    for other in list(sys.modules.values()):
        if str(getattr(other, "__name__", "")).startswith(package) and vars(other).get(name) is original:
            setattr(other, name, replacement)
    setattr(module, name, replacement)


class _Waiting(MetaPathFinder):
    """Lets the other finders find a module, and acts when it has been executed."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        actions = self.actions.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if actions else None
        if spec is not None and spec.loader is not None and actions:
            spec.loader = _ActingLoader(spec.loader, actions)
        return spec


class _ActingLoader(Loader):
    """Steps aside for the real loader before the module's own code runs."""

    def __init__(self, loader: Loader, actions: list[Action]) -> None:
        self._loader = loader
        self._actions = actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)


INIT = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options", "device_id")
NEW_GROUP = ("ranks", "timeout", "backend", "pg_options")
"""What torch's `init_process_group` and `new_group` take, in that order."""


class CallByName:
    """How `function` is called that takes at most the names in `order`, which may be given by place in that order."""

    def __init__(self, function: Callable[..., Any], order: Sequence[str]) -> None:
        self._signature = inspect.signature(function)
        kinds = self._signature.parameters.values()
        names = [one.name for one in kinds if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        takes_more = any(one.kind is one.VAR_POSITIONAL for one in kinds)
        self._order = [*names, *order[len(names) :]] if takes_more else names

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, by name. Raises TypeError where the function would."""
        self._signature.bind(*args, **kwargs)
        return {**dict(zip(self._order, args, strict=False)), **kwargs}

    def change(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], changes: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with other values: what was given in its place stays there."""
        placed = tuple(changes.get(name, value) for name, value in zip(self._order, args, strict=False))
        return placed, {
            **kwargs,
            **{name: value for name, value in changes.items() if name not in self._order[: len(args)]},
        }
