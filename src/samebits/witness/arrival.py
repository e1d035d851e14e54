"""When the script has imported torch, and not before: a script that never does is left as it is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

VARIABLE = "SAMEBITS_WITNESS"
"""What is wanted, as JSON: see `witness.Wanted`."""


class _Torch(importlib.abc.MetaPathFinder):
    """Finds torch as all others do; when it has been imported, the witness begins to listen."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> Any:
        if fullname != "torch" or self._is_asking:
            return None
        # Libraries ask whether torch is there long before they import it: each answer must be able to begin.
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Torch's loader, and what follows it."""

    def __init__(self, loader: Any, finder: _Torch) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # As if this loader had never been: libraries ask a module's loader for its source.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(ValueError):
            sys.meta_path.remove(self._finder)
        begin()


def await_torch() -> None:
    """Listen from the moment on at which torch has been imported, which a .pth file or another sitecustomize may have done."""
    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, _Torch())


def begin() -> None:
    """Listen to torch's optimizers from now on."""
    from .fixes import FIXES
    from .witness import Wanted, Witness

    wanted: dict[str, Any] = json.loads(os.environ[VARIABLE])
    for name in wanted.pop("fixes", ()):
        FIXES[name]()
    Witness(Wanted(**wanted)).listen()
