"""The copy of the working directory, where no private view can be had, and the folder of the runs."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from samebits.errors import EnvironmentFailure
from samebits.launcher.trials import workplace
from samebits.launcher.trials.trials import KEPT, YOUNG_S, RunsFolder
from samebits.launcher.trials.workplace import copy_folder
from samebits.machine.held_folder import remove_tree
from samebits.machine.private_view import ViewReport


def test_the_copy_has_the_small_entries_and_links_to_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "home" / "project"
    (here / "code" / "deep").mkdir(parents=True)
    (here / "code" / "deep" / "net.py").write_text("1")
    (here / "inside").symlink_to("code/deep")
    (here / "outside").symlink_to("../data")
    (here / "large.bin").write_bytes(bytes(100_000))
    (tmp_path / "home" / "data").mkdir()
    (tmp_path / "home" / "data" / "x.csv").write_text("x")
    os.mkfifo(here / "pipe")
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(workplace, "MAX_BYTES", 90_000)
    place = copy_folder(here, tmp_path / "root")
    assert place == Path(f"{tmp_path}/root{here}")
    assert (place / ".." / "data" / "x.csv").read_text() == "x"
    assert (place / "outside" / "x.csv").read_text() == "x"
    assert not (place / "pipe").exists()
    assert (place / "large.bin").resolve() == here / "large.bin"
    (place / "inside" / "net.py").write_text("2")
    assert (place / "code" / "deep" / "net.py").read_text() == "2"
    assert (here / "code" / "deep" / "net.py").read_text() == "1"
    remove_tree(tmp_path / "root")
    assert (tmp_path / "home" / "data" / "x.csv").exists()


def test_no_more_files_are_copied_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("many", 9), ("few", 2)):
        (tmp_path / "here" / name).mkdir(parents=True)
        for each in range(number):
            (tmp_path / "here" / name / str(each)).touch()
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(workplace, "MAX_FILES", 5)
    place = copy_folder(tmp_path / "here", tmp_path / "root")
    assert [(place / name).is_symlink() for name in ("few", "many")] == [False, True]


def test_what_a_killed_command_left_is_removed_and_what_was_kept_stays_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, kept, old = RunsFolder("verify"), RunsFolder("bench"), RunsFolder("verify")
    (killed.path / "work").mkdir(mode=0o000)
    for folder in (kept, old):
        assert folder.keep() == f"The runs are kept in {folder.path} for a day"
    os.utime(old.path / KEPT, (time.time() - YOUNG_S - 1,) * 2)
    others = [tmp_path / "samebits-verify-of-another-version", tmp_path / "samebits-test-other.held"]
    for other in others:
        other.mkdir()
    present = RunsFolder("verify")
    assert all(folder.path.exists() for folder in (killed, kept, old)), "they are in use"
    for folder in (killed, kept, old):
        folder.close()
    RunsFolder("bench").remove()
    assert [folder.path.exists() for folder in (killed, kept, old, present)] == [False, True, False, True]
    assert all(other.exists() for other in others)
    present.remove()
    present.close()
    assert not present.path.exists()


def test_runs_in_a_view_and_runs_in_a_copy_are_not_mixed(tmp_path):
    reports = iter([ViewReport(), ViewReport("it is full")])
    nursery = SimpleNamespace(make_view=lambda *_: next(reports))
    places = workplace.Workplaces(nursery, tmp_path, False, lambda _: None)
    assert places.begin() == workplace.Workplace()
    places.end()
    with pytest.raises(EnvironmentFailure, match="made again"):
        places.begin()
