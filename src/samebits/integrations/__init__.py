"""samebits's bits inside the training loops of other libraries. Nothing here is imported unless a script asks for it."""

from __future__ import annotations

import importlib.metadata

from samebits.errors import UsageError


def require(package: str, first: str, below: str) -> None:
    """Raise `UsageError` unless `first` <= the installed version < `below`.

    Raises:
        UsageError: when the package is missing, or has another version.
    """
    fix = f'Run pip install "{package}>={first},<{below}".'
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"{package} is not installed.", fix) from None
    if not _numbers(first) <= _numbers(found) < _numbers(below):
        raise UsageError(f"samebits works inside {package} {first} up to {below}, and {found} is installed.", fix)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
