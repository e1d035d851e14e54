"""What must be installed, which version of samebits is, and how a failed import is explained."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from samebits.errors import EnvironmentFailure, SamebitsError, UsageError

VERSION = "0.1.0"
"""Of what is imported, whatever an index or an installer calls so. `make release` sets it; the build reads it here."""
RELEASED = False
"""Whether the package index has this package under this name. Until then nothing says to install that name from there: it would be a
stranger's."""
FIX = "Raise the limit with `ulimit -v unlimited`."
NEEDED = ("torch", "numpy", "safetensors", "cloudpickle", "rich", "click")
"""What pip installs with samebits, and `pip install --no-deps` does not."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)'\s*\Z")
_FEW_ADDRESSES = re.compile(
    r"failed to map segment|cannot (create|allocate|enable|apply).*(memory|segment|protection)|MemoryError|bad_alloc|errno 12\b",
    re.IGNORECASE,
)
"""What the loader, the C library, C++ and Python say then."""


def to_install(extra: str = "", options: str = "") -> str:
    """The command that installs this package, with an extra: in a clone, until an index has it."""
    what = f"[{extra}]" if extra else ""
    name = f"samebits{what}" if RELEASED else f".{what}"
    command = f"pip install {options} {name}" if options else f'pip install "{name}"'
    return command if RELEASED else f"{command} in a clone of samebits"


def is_for_want_of_addresses(error: str, most_addresses: int) -> bool:
    """Whether the limit explains why an import has raised this.

    Args:
        error: its traceback, or the last line of it.
        most_addresses: how many bytes of addresses a process may have; negative: any number.
    """
    return most_addresses >= 0 and _FEW_ADDRESSES.search(error) is not None


def check_package() -> None:
    """Raise `UsageError` where `import samebits` gives another package's `__init__.py`. Compares one path."""
    if getattr(sys.modules["samebits"], "_FILE", None) != str(Path(__file__).parents[1] / "__init__.py"):
        file = getattr(sys.modules["samebits"], "__file__", None)
        raise UsageError(f"Another package has put its own samebits at {file}.", "Run python -m samebits doctor.")


def source_digest() -> str:
    """Eight digits of what this package's Python files say, in 20 ms: nodes with other ones may give other bits."""
    package = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=4)
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def not_installed(package: str) -> UsageError:
    """What to raise where one of `NEEDED` is missing."""
    return UsageError(
        f"{package} is not installed for {sys.executable}.", f"Run {sys.executable} -m pip install {package}."
    )


def failed_import(module: str, error: str, most_addresses: int) -> SamebitsError:
    """What to raise for an import that has raised: the missing package or the limit where that explains it, else the import's own
    words.

    Args:
        module: its name.
        error: its traceback.
        most_addresses: see `is_for_want_of_addresses`.
    """
    if is_for_want_of_addresses(error, most_addresses):
        return too_few_addresses(most_addresses)
    missing = _MISSING.search(error)
    if missing is not None and missing[1] in NEEDED:
        return not_installed(missing[1])
    return EnvironmentFailure(f"{module} cannot be imported here:\n{error.rstrip()}")


def too_few_addresses(most_addresses: int) -> UsageError:
    """What to raise where the limit explains why the nursery has not imported torch."""
    process = "The process that imports torch for all ranks"
    return UsageError(f"{process} did not survive that with {most_addresses >> 20} MiB of addresses.", FIX)


def check_import(is_imported: bool, most_addresses: int) -> None:
    """Raise `UsageError` where a limit explains why the process that imports torch has died.

    Args:
        is_imported: whether it had imported it; then the limit does not.
        most_addresses: see `is_for_want_of_addresses`.
    """
    if not is_imported and most_addresses >= 0:
        raise too_few_addresses(most_addresses)


def installed() -> list[str]:
    """The packages here, each with its version, as its folder is called; none is read."""
    places = [place for place in map(Path, sys.path) if place.name in ("site-packages", "dist-packages")]
    found = [one.name for place in places if place.is_dir() for one in place.iterdir()]
    return sorted(name for name in found if name.endswith((".dist-info", ".egg-info")))
