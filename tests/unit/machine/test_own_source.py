"""What lets pip install lockstep again from where it came."""

from __future__ import annotations

import pytest

from lockstep.machine.own_source import words_of
from lockstep.node import native


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("", "lockstep-train"),
        ("[1]", "lockstep-train"),
        ('{"url": "file:///home/a%20b/lockstep", "dir_info": {}}', "'/home/a b/lockstep'"),
        ('{"url": "file:///home/a/lockstep", "dir_info": {"editable": true}}', "-e /home/a/lockstep"),
        ('{"url": "file:///tmp/lockstep-0.1.tar.gz", "archive_info": {}}', "/tmp/lockstep-0.1.tar.gz"),
        ('{"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}', "'lockstep-train @ git+https://host/a.git'"),
    ],
)
def test_it_is_the_place_that_pip_noted_or_the_name(told: str, words: str) -> None:
    assert words_of(told) == words


def test_the_fix_for_a_missing_compiled_part_names_what_to_install() -> None:
    text = native.reason(ModuleNotFoundError(name="lockstep._native"), "linux")
    command = text.partition("`")[2].partition("`")[0]
    assert command.startswith("pip install --force-reinstall --no-deps -v ")
    assert not command.endswith("-v ")
