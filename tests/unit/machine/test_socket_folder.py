"""Processes of a run keep their sockets in one folder, whoever of them is killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from samebits.machine.leftovers import MARKER, remove_socket_folder

PROGRAM = """
import multiprocessing, os, sys
from multiprocessing.connection import Listener
from samebits.machine.leftovers import share_socket_folder

def be_killed():
    listener = Listener(family="AF_UNIX")
    print(listener.address, flush=True)
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    share_socket_folder()
    child = multiprocessing.get_context(sys.argv[1]).Process(target=be_killed)
    child.start()
    child.join()
    be_killed()
"""


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files that no other run sweeps; its path is short, since that of a socket is."""
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield


def test_a_killed_process_leaves_its_socket_in_the_folder_that_is_removed(tmp_path, temporary):
    marker = f"4711-{os.urandom(8).hex()}"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = []
    for method in ("fork", "spawn"):
        command = [sys.executable, str(program), method]
        done = subprocess.run(command, env={**os.environ, MARKER: marker}, capture_output=True, text=True, timeout=60)
        assert done.returncode == -9, done.stderr
        paths += map(Path, done.stdout.split())
    (folder,) = {path.parent for path in paths}
    assert len(paths) == 4
    assert sorted(folder.iterdir()) == sorted([*paths, folder / "held"])
    assert folder.stat().st_mode & 0o777 == 0o700
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir()
    remove_socket_folder(marker)
    assert not folder.exists() and not unfinished.exists()
    remove_socket_folder(marker)


def test_where_temporary_files_have_long_paths_the_sockets_are_in_a_short_one(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    marker = f"4711-{os.urandom(8).hex()}"
    command = [sys.executable, str(program), "fork"]
    done = subprocess.run(command, env={**os.environ, MARKER: marker}, capture_output=True, text=True, timeout=60)
    paths = [Path(line) for line in done.stdout.split()]
    assert [path.parent for path in paths] == [Path("/tmp") / f"sbmp-{marker[-8:]}"] * 2, done.stderr
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    remove_socket_folder(marker)
    assert not paths[0].parent.exists()
