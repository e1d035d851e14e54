"""Temporary folders: nothing stays, not even of a process that was killed."""

import stat
import subprocess
import sys
from pathlib import Path

from samebits.machine.held_folder import TemporaryFolder

HOLD = """
import sys
from pathlib import Path
from samebits.machine.held_folder import TemporaryFolder

with TemporaryFolder("samebits-copy-", Path(sys.argv[1])) as room:
    (room / "weights").touch()
    print(room, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_used_stays(tmp_path):
    (tmp_path / "samebits-other").mkdir()
    (tmp_path / "samebits-copy-without-a-lock").mkdir()
    (tmp_path / "samebits-copy-file.held").touch()
    (tmp_path / "samebits-copy-link.held").symlink_to(tmp_path / "samebits-other")
    strangers = set(tmp_path.iterdir())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    theirs = holder.stdout.readline().strip()
    with TemporaryFolder("samebits-copy-", tmp_path) as mine:
        assert stat.S_IMODE(mine.stat().st_mode) == 0o700
        assert {str(path) for path in set(tmp_path.iterdir()) - strangers} == {theirs, str(mine)}
        (mine / "layer").mkdir(mode=0o000)
        holder.kill()
        holder.communicate()
        assert Path(theirs, "weights").exists()
        with TemporaryFolder("samebits-copy-", tmp_path) as another:
            assert set(tmp_path.iterdir()) - strangers == {mine, another}
    assert set(tmp_path.iterdir()) == strangers
