"""A library that is missing, or was not tested, is one sentence."""

import importlib.metadata

import pytest

from samebits.errors import UsageError
from samebits.integrations import require


@pytest.mark.parametrize(
    ("found", "is_good"), [("1.10.0", True), ("1.15.2", True), ("1.9.1", False), ("1.16.0", False)]
)
def test_a_version_is_taken_within_the_tested_range(monkeypatch, found, is_good):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: found)
    if is_good:
        require("accelerate", "1.10", "1.16")
        return
    with pytest.raises(UsageError, match=f"inside accelerate 1.10 up to 1.16, and {found} is installed") as told:
        require("accelerate", "1.10", "1.16")
    assert told.value.fix == 'Run pip install "accelerate>=1.10,<1.16".'


def test_a_missing_library_is_named():
    with pytest.raises(UsageError, match="no-such-library is not installed"):
        require("no-such-library", "1.0", "2.0")
