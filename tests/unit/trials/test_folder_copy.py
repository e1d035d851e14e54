"""The copy of the working directory, where no private view can be had, and the folder of the runs."""

import fcntl
import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lockstep.machine.private_view import remove_tree
from lockstep.trials.folder_copy import Extent, copy_folder, extents_of, select, size_text
from lockstep.trials.runs_folder import KEPT, NUM_KEPT, YOUNG_S, RunsFolder, kept_in, kept_sentence, left_behind

EXTENTS = st.dictionaries(st.text(min_size=1), st.builds(Extent, st.integers(0, 100), st.integers(1, 10)))


@given(EXTENTS, st.integers(0, 300), st.integers(0, 30))
def test_every_entry_is_copied_or_linked_and_copies_stay_within_the_limits(
    extents: dict[str, Extent], max_bytes: int, max_files: int
) -> None:
    chosen = select(extents, max_bytes, max_files)
    assert sorted([*chosen.copied, *chosen.linked]) == sorted(extents)
    assert sum(extents[name].num_bytes for name in chosen.copied) <= max_bytes
    assert sum(extents[name].num_files for name in chosen.copied) <= max_files


def test_the_copy_has_the_small_entries_and_links_to_everything_else(tmp_path: Path) -> None:
    here = tmp_path / "home" / "project"
    (here / "code" / "deep").mkdir(parents=True)
    (here / "code" / "deep" / "net.py").write_text("1")
    (here / "inside").symlink_to("code/deep")
    (here / "outside").symlink_to("../data")
    (here / "large.bin").write_text("large")
    (tmp_path / "home" / "data").mkdir()
    (tmp_path / "home" / "data" / "x.csv").write_text("x")
    os.mkfifo(here / "pipe")
    extents = extents_of(here)
    assert extents["code"] == Extent(1, 3)
    chosen = select({**extents, "large.bin": Extent(1 << 40, 1)})
    (tmp_path / "root").mkdir()
    place = copy_folder(here, chosen, tmp_path / "root")
    assert place == Path(f"{tmp_path}/root{here}")
    assert (place / ".." / "data" / "x.csv").read_text() == "x"
    assert (place / "outside" / "x.csv").read_text() == "x"
    assert not (place / "pipe").exists()
    assert (place / "large.bin").resolve() == here / "large.bin"
    (place / "inside" / "net.py").write_text("2")
    assert (place / "code" / "deep" / "net.py").read_text() == "2"
    assert (here / "code" / "deep" / "net.py").read_text() == "1"
    assert size_text(Extent(1 << 40, 1)) == "more than 256 MiB"
    assert size_text(Extent(3 << 20, 20_000)) == "20000 files"
    remove_tree(tmp_path / "root")
    assert (tmp_path / "home" / "data" / "x.csv").exists()


def test_what_a_killed_command_left_is_removed_and_what_was_kept_is_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, kept = RunsFolder("verify"), RunsFolder("bench")
    (killed.path / "work").mkdir(mode=0o000)
    kept.keep()
    assert left_behind(tmp_path) == []
    killed.close()
    kept.close()
    assert left_behind(tmp_path) == [killed.path]
    (tmp_path / "lockstep-verify-being-made").mkdir()
    (tmp_path / "lockstep-test-other").mkdir()
    present = RunsFolder("verify")
    assert sorted(tmp_path.iterdir()) == sorted(
        [kept.path, present.path, tmp_path / "lockstep-verify-being-made", tmp_path / "lockstep-test-other"]
    )
    assert set(kept_in(tmp_path)) == {kept.path, tmp_path / "lockstep-verify-being-made"}
    present.keep()
    assert kept_sentence(present.path).startswith(f"The runs are kept in {present.path} (2 from earlier commands are")
    assert kept_sentence(kept.path).startswith(f"The runs are kept in {kept.path} (2 from")
    present.remove()
    present.close()
    assert not present.path.exists()


def test_of_the_folders_that_were_kept_the_newest_stay_and_those_that_are_young_or_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def kept(name, age_s):
        folder = tmp_path / name
        (folder / "01-plain").mkdir(parents=True)
        (folder / KEPT).touch()
        (folder / ".running").touch()
        os.utime(folder / KEPT, (time.time() - age_s, time.time() - age_s))
        return folder

    old = [kept(f"lockstep-verify-old{number}", 10 * YOUNG_S + number) for number in range(NUM_KEPT + 2)]
    strangers = [kept("lockstep-other-x", 99 * YOUNG_S), tmp_path / "lockstep-verify-without-a-mark"]
    strangers[1].mkdir()
    used, place = kept("lockstep-bench-used", 20 * YOUNG_S), kept("lockstep-bench-place", 20 * YOUNG_S)
    lock = os.open(used / ".running", os.O_WRONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    monkeypatch.chdir(place / "01-plain")
    present = RunsFolder("verify")
    assert all(path.exists() for path in old), "a command that keeps nothing removes nothing that was kept"
    present.keep()
    assert [path for path in old if path.exists()] == old[: NUM_KEPT - 1]
    assert all(path.exists() for path in (present.path, used, place, *strangers))
    os.close(lock)
    monkeypatch.chdir(tmp_path)
    young = [kept(f"lockstep-bench-young{number}", number) for number in range(NUM_KEPT + 2)]
    present.keep()
    assert not any(path.exists() for path in (*old, used, place))
    assert all(path.exists() for path in (present.path, *young, *strangers))
    present.close()
