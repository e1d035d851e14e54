"""Python imports this file at its start where its folder is on PYTHONPATH. It waits for torch, and leaves the rest as it is."""

import importlib.util
import json
import os
import sys


def _go_on() -> None:
    """Import the `sitecustomize` that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    hidden = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401 - another one
    except ImportError:
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden


def _witness() -> str:
    """The name of the package that listens."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Under a name of its own: an installed samebits may be another version.
    name = "_samebits_witness"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _import_from_commit() -> None:
    moved = json.loads(os.environ["SAMEBITS_WITNESS"]).get("moved")
    if moved:
        importlib.import_module(f"{_NAME}.moved").import_from_commit(*moved)


_NAME = _witness() if os.environ.get("SAMEBITS_WITNESS") else ""
if _NAME:
    _import_from_commit()
try:
    _go_on()
finally:
    # Python goes on behind a sitecustomize that fails.
    if _NAME:
        importlib.import_module(f"{_NAME}.arrival").await_torch()
