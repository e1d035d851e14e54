"""Environments of their own, for other versions of torch and for other people's libraries.

Each is a virtual environment that sees this checkout's `src/`, compiled module included, as an editable install does;
but pip's editable install would take the compiled module away, because it builds anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment; its folder may not exist yet."""

    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    @property
    def python(self) -> str:
        return self.program("python")

    def make(self) -> None:
        """From the Python that runs this, with `src/` on its path."""
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        (found,) = self.folder.glob("lib/python3*/site-packages")
        (found / "_samebits_checkout.pth").write_text(f"{ROOT / 'src'}\n")

    def install(self, requirements: Sequence[str], constraints: Sequence[str]) -> None:
        """Install as pip does, in one resolution.

        Raises:
            subprocess.CalledProcessError: pip could not; it has said why.
        """
        lines = self.folder / "constraints.txt"
        lines.write_text("".join(f"{line}\n" for line in constraints))
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "-c", str(lines), *requirements], check=True)


def requirements(extra: str = "", project: Path = ROOT / "pyproject.toml") -> list[str]:
    """What this project needs, with one of its extras and those that the extra names; torch left out."""
    told = tomllib.loads(project.read_text())["project"]
    lines = [*told["dependencies"], *([f"{told['name']}[{extra}]"] if extra else [])]
    found = []
    for line in lines:  # which grows
        if own := re.fullmatch(rf"{told['name']}\[([\w,]+)\]", line):
            lines += [each for extra in own[1].split(",") for each in told["optional-dependencies"][extra]]
        elif name_of(line) != "torch":
            found.append(line)
    return found


def name_of(requirement: str) -> str:
    """`lightning-fabric` of `lightning_fabric>=2.5`."""
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def pinned(file: Path, *but: str) -> list[str]:
    """The lines of a file of constraints, without comments and without the packages named."""
    lines = [line.strip() for line in file.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#") and name_of(line) not in but]
