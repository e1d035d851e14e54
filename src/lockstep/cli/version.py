"""The version of the installed package, which pyproject.toml alone says."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Three numbers with dots, or that it is not installed."""
    try:
        return metadata.version("lockstep-train")
    except metadata.PackageNotFoundError:
        return "(not installed)"
