"""Newer versions in constraints.txt: `make constraints`, or `python -m shipping.constraints`.

An environment is made in which everything but torch is as new as pip can get it, with every extra of the package; what
ends up in it is written down. torch stays as it is, because each torch must be tested: TORCH=2.14.1 chooses another.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from shipping.refusal import Refusal, ended

ROOT = Path(__file__).resolve().parents[1]

_OF_CUDA = re.compile(r"(nvidia-|cuda-|triton\b)", re.IGNORECASE)
"""What torch's build for CUDA brings; the versions are torch's own business."""


def kept(frozen: str) -> list[str]:
    """The lines of `pip freeze` that belong in the file: no package of CUDA, nothing from a folder, no `+cpu`."""
    lines = [line.strip() for line in frozen.splitlines()]
    pins = [re.sub(r"\+.*", "", line) for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)]
    return sorted((pin for pin in pins if not _OF_CUDA.match(pin)), key=str.lower)


def torch_of(text: str) -> str:
    """The version of torch that a file of constraints has.

    Raises:
        Refusal: none.
    """
    found = re.search(r"^torch==(\S+)$", text, re.MULTILINE)
    if found is None:
        raise Refusal(
            "constraints.txt has no line torch==x.y.z: put it back, or say which: make constraints TORCH=2.13.0"
        )
    return found[1]


def refresh(file: Path, torch: str) -> None:
    """Rewrite the file; its first lines, which are comments, stay."""
    old = file.read_text()
    torch = torch or torch_of(old)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ",".join(project["optional-dependencies"])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pure = ["--config-settings=wheel.cmake=false", "--config-settings=wheel.py-api=py3"]
        subprocess.run([*pip, f"torch=={torch}"], check=True)
        subprocess.run([*pip, "--upgrade", *pure, f"torch=={torch}", f"{ROOT}[{extras}]"], check=True)
        frozen = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    comments = [line for line in old.splitlines() if line.startswith("#")]
    pins = [pin for pin in kept(frozen) if not pin.startswith(f"{project['name']}==")]
    file.write_text("\n".join([*comments, *pins, ""]))
    print(
        f"{file.name} has {len(pins)} versions, {len(set(pins) - set(old.splitlines()))} of them new: git diff, make test"
    )


def main(arguments: Sequence[str]) -> int:
    """0 when the file is written."""
    parser = argparse.ArgumentParser(
        prog="python -m shipping.constraints", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--torch", default="", help="a version of torch [the one in the file]")
    asked = parser.parse_args(arguments)
    return ended(lambda: refresh(ROOT / "constraints.txt", asked.torch))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
