"""The version is in one place, protocol/installation.py."""

from __future__ import annotations

import re
from pathlib import Path

import samebits
from samebits.protocol.installation import VERSION

ROOT = Path(__file__).parents[3]


def test_no_other_file_repeats_the_version() -> None:
    assert samebits.__version__ == VERSION
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "native").rglob("CMakeLists.txt"),
        ROOT / "CITATION.cff",
        ROOT / "pyproject.toml",
    ]
    pattern = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])")
    assert [file.name for file in files if pattern.search(file.read_text())] == ["installation.py"]
