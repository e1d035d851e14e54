"""What a run may leave behind is found by ancestry and by marker, and nothing else is touched."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samebits.machine.held_folder import hold_together, make_held
from samebits.machine.leftovers import (
    SHARED_MEMORY,
    cleans_up,
    descendants,
    ending,
    have_ended,
    kill,
    left_folders,
    marked,
    orphaned_shared_memory,
    remove_left_folders,
    remove_shared_memory,
    remove_unmarked_group_files,
    unmarked_group_files,
)
from samebits.protocol.nursery_messages import Channel, ChannelClosed, Signal, Sweep, channel_pair
from samebits.protocol.rank_task import RankTask, read_task, write_task

WAITING = "import sys; print('up', flush=True); sys.stdin.read()"


def write_process(proc: Path, pid: int, parent: int, name: str = "python", state: str = "S") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1 0 -1")


def test_descendants_are_all_below_and_nobody_else(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (20, 10), (21, 10), (30, 20), (40, 30), (50, 1)):
        write_process(tmp_path, pid, parent)
    write_process(tmp_path, 60, 40, name="a) S 1 (b")
    write_process(tmp_path, 70, 10, state="Z")
    (tmp_path / "meminfo").touch()
    assert sorted(descendants(10, tmp_path)) == [20, 21, 30, 40, 60]


def test_a_process_has_ended_when_it_is_a_zombie_or_gone(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1)
    write_process(tmp_path, 20, 1, state="Z")
    assert have_ended([20, 30], tmp_path)
    assert not have_ended([20, 10], tmp_path)
    (tmp_path / "40").mkdir()
    (tmp_path / "40" / "stat").write_text(
        f"40 (a) Z 1 {' '.join(['0'] * 15)} 2 0 0"
    )  # another thread has files open yet
    assert not have_ended([20, 40], tmp_path)
    (tmp_path / "40" / "stat").write_text(f"40 (a) Z 1 {' '.join(['0'] * 15)} 1 0 0")
    assert have_ended([20, 40], tmp_path)


def test_a_process_that_is_ending_is_seen_by_the_kernels_flag(tmp_path: Path) -> None:
    for pid, flags in ((10, 0x400), (20, 0x404), (30, 0x40C)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) R 1 1 1 0 -1 {flags} 0 0")
    (tmp_path / "40").mkdir()
    assert ending(tmp_path) == {20, 30}
    assert os.getpid() not in ending()


def test_a_real_process_is_found_by_its_marker_and_killed() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env={**os.environ, "SAMEBITS_NURSERY": "this one"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert child.pid in descendants(os.getpid())
        assert marked("SAMEBITS_NURSERY", "this") == []
        assert marked("SAMEBITS_NURSERY", "this one") == [child.pid]
        kill([child.pid, child.pid])
        assert child.wait(10) == -9


MAKING = """
import sys
from samebits import _native
memory = _native.Memory.create_named(sys.argv[1], 4096, reserve=True)
print('up', flush=True)
sys.stdin.read()
"""


def test_memory_of_a_group_is_a_leftover_when_its_maker_was_killed_before_it_took_the_name_away() -> None:
    native = pytest.importorskip("samebits._native")
    name = native.random_name()
    child = subprocess.Popen([sys.executable, "-c", MAKING, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert (SHARED_MEMORY / name).stat().st_mode & 0o777 == 0o600
        remove_unmarked_group_files()
        assert name not in unmarked_group_files()
        kill([child.pid])
    assert name in unmarked_group_files()
    assert name in orphaned_shared_memory()
    remove_unmarked_group_files()
    assert not (SHARED_MEMORY / name).exists()


def test_only_files_of_groups_are_looked_at(tmp_path: Path) -> None:
    for name in ("samebits-notes", f"samebits-{'0' * 31}", f"samebits-{'0' * 32}.txt", f"samebits-{'a' * 32}"):
        (tmp_path / name).touch()
    (tmp_path / f"samebits-{'b' * 32}").symlink_to(tmp_path / "samebits-notes")
    assert unmarked_group_files(tmp_path) == [f"samebits-{'a' * 32}"]
    remove_unmarked_group_files(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    remove_unmarked_group_files(tmp_path / "missing")


def test_folders_are_removed_when_nobody_holds_their_lock_and_their_sockets_are_left_alone(tmp_path: Path) -> None:
    names = ("samebits-kept-1-0a", "samebits-kept-1-0b", "samebits-kept-x", "sbmp-held", "sbmp-left", "pymp-other")
    kept, left, other, held, dead, pymp = (tmp_path / name for name in names)
    for folder in (left, other, dead, pymp):
        (folder / "run-1").mkdir(parents=True)
    locks = [make_held(kept), hold_together(held), hold_together(held)]
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(dead / "listener-1"))
        end.listen()
        end.setblocking(False)
        remove_left_folders(tmp_path, tmp_path)
        with pytest.raises(BlockingIOError):
            end.accept()  # nobody has called
    assert sorted(tmp_path.iterdir()) == sorted([kept, other, held, pymp])
    os.close(locks.pop())
    assert left_folders(tmp_path, tmp_path) == []
    for lock in locks:
        os.close(lock)
    assert left_folders(tmp_path, tmp_path) == sorted([kept, held])
    remove_left_folders(tmp_path, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([other, pymp])
    remove_left_folders(tmp_path / "missing", tmp_path / "missing")


def test_a_folder_whose_maker_was_killed_before_it_had_the_lock_is_removed_after_a_minute(tmp_path: Path) -> None:
    old, new = tmp_path / ".sbmp-0a.12", tmp_path / ".sbmp-0b.12"
    for folder in (old, new):
        folder.mkdir()
    minute_ago = old.stat().st_mtime - 61
    os.utime(old, (minute_ago, minute_ago))
    remove_left_folders(tmp_path, tmp_path)
    assert sorted(tmp_path.iterdir()) == [new]


def test_a_folder_that_was_removed_while_somebody_took_hold_of_it_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "sbmp-x"
    first = hold_together(folder)
    os.close(first)
    remove_left_folders(tmp_path, tmp_path)
    second = hold_together(folder)
    assert os.fstat(second).st_ino == folder.stat().st_ino
    os.close(second)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="sbmp-x"):
        hold_together(folder)


def test_a_folder_whose_making_was_not_finished_is_left_to_its_maker_for_a_minute(tmp_path: Path) -> None:
    names = (".sbmp-0a.17", ".samebits-kept-1-0a.17")
    for name in names:
        (tmp_path / name).mkdir()
    assert left_folders(tmp_path, tmp_path) == []
    for name in names:
        os.utime(tmp_path / name, (time.time() - 61,) * 2)
    remove_left_folders(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_shared_memory_of_the_given_processes_is_removed(tmp_path: Path) -> None:
    for name in ("torch_12_345_0", "torch_12_345_1", "torch_123_45_0", "torch_12_notes", "sem.mp-12", "psm_12"):
        (tmp_path / name).touch()
    remove_shared_memory({12, 99}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "psm_12",
        "sem.mp-12",
        "torch_123_45_0",
        "torch_12_notes",
    ]


def test_resource_trackers_are_left_time_to_clean_up(tmp_path: Path) -> None:
    for pid, command in ((1, b"python\0-c\0from multiprocessing.resource_tracker import main;main(3)"), (2, b"python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    assert (cleans_up(1, tmp_path), cleans_up(2, tmp_path), cleans_up(3, tmp_path)) == (True, False, False)


def test_messages_and_descriptors_cross_and_the_other_sides_end_is_noticed() -> None:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    order = RankTask(1, "train.py", "", ("--text", "ü" * 200_000), "/", "/runs/x", {"A": "1", "B": None})
    descriptor = write_task(order)
    ours.send(Signal(15, (0, 2)), (descriptor,))
    os.close(descriptor)
    message, descriptors = other.receive()
    assert message == Signal(15, (0, 2))
    assert read_task(descriptors[0]) == order
    os.close(descriptors[0])
    other.close()
    for use in (ours.receive, lambda: ours.send(Sweep())):
        try:
            use()
        except ChannelClosed:
            continue
        raise AssertionError("the end was not noticed")
    ours.close()
