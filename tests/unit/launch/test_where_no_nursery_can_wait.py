"""Where no nursery can wait: what is wrong with the folder of its socket, and the fix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.launch.warm.no_folder import no_folder
from lockstep.launch.warm.place import places

NAME = "lockstep-warm"


@pytest.fixture(autouse=True)
def _without_a_runtime_folder() -> None:
    if Path(f"/run/user/{os.geteuid()}").is_dir():
        pytest.skip("here there is a runtime folder")


def told(**variables: str) -> tuple[str, str]:
    mistake = no_folder(variables)
    assert mistake is not None
    return mistake.problem.partition(", but ")[2], mistake.fix


def test_a_folder_that_is_there_or_can_be_made_is_no_trouble_and_nothing_is_made(tmp_path: Path) -> None:
    assert no_folder({"HOME": str(tmp_path)}) is None
    assert no_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / NAME).mkdir(mode=0o700)
    assert no_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) is None


def test_a_relative_cache_folder_is_ignored_as_the_specification_says(tmp_path: Path) -> None:
    assert places({"XDG_CACHE_HOME": "cache", "HOME": str(tmp_path)}, 7)[-1] == f"{tmp_path}/.cache/{NAME}"


def test_each_trouble_names_the_folder_and_the_fix(tmp_path: Path) -> None:
    where = {"XDG_CACHE_HOME": str(tmp_path)}
    another = "et XDG_RUNTIME_DIR to a folder that only you can enter."
    assert told() == ("HOME is not set, so there is none.", f"S{another}")
    assert told(HOME=f"{tmp_path}/gone") == (f"{tmp_path}/gone is not there.", f"Make it, or s{another}")
    folder = tmp_path / NAME
    folder.symlink_to(tmp_path)
    assert told(**where) == (f"{folder} is a symbolic link.", f"Move it away, or s{another}")
    folder.unlink()
    folder.touch()
    assert told(**where) == (f"{folder} is no folder.", f"Move it away, or s{another}")
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o755)
    assert told(**where) == (f"others can enter {folder}, whose mode is 0755.", f"Run `chmod 700 {folder}`.")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert told(HOME=str(tmp_path))[0] == f"{tmp_path} cannot be written to."
