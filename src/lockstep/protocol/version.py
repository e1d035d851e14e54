"""The version of the installed package, which only pyproject.toml states."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Three numbers with dots, or "(not installed)"."""
    try:
        return metadata.version("lockstep-train")
    except metadata.PackageNotFoundError:
        return "(not installed)"
