"""Where the user's tree and a commit of it are: what is imported from the one must come from the other."""

import os
import sys


def in_commit(path: str, root: str, place: str) -> str:
    """Where the commit has a file or folder of the user's tree; empty where it is none, or one that git does not know."""
    real = os.path.realpath(path)
    if not path or real.startswith(place + os.sep) or not (real + os.sep).startswith(root.rstrip(os.sep) + os.sep):
        return ""
    there = os.path.join(place, os.path.relpath(real, root))
    # What git does not know is a link to the user's own.
    return there if os.path.exists(there) and os.path.realpath(there).startswith(place) else ""


def import_from_commit(root: str, place: str) -> None:
    """Look there for all that PYTHONPATH and editable installs name in the user's tree."""
    sys.path[:] = [path and (in_commit(path, root, place) or path) for path in sys.path]
    for name, module in list(sys.modules.items()):
        mapping = getattr(module, "MAPPING", None)
        # As setuptools calls what finds an editable package.
        if name.startswith("__editable__") and isinstance(mapping, dict):
            mapping.update({one: in_commit(path, root, place) or path for one, path in mapping.items()})
