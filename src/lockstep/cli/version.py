"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """`0.1.0`, or that it is not installed."""
    try:
        return metadata.version("lockstep-train")
    except metadata.PackageNotFoundError:
        return "(not installed)"
