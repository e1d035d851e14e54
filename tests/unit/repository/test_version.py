"""The version is in one place, pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_other_file_repeats_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "native").rglob("CMakeLists.txt"), ROOT / "CITATION.cff"]
    pattern = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    assert [str(file) for file in files if pattern.search(file.read_text())] == []
