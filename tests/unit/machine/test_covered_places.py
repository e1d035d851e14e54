"""A private view of the file system: what it covers, and what it leaves as it was."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.machine.private_view import cover, is_below, parse_mounts

INFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:22 / /dev rw - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
26 22 8:1 / /mnt/old rw - ext4 /dev/sdb rw
27 22 8:17 / /mnt/my\\040disk rw,nosuid master:1 - xfs /dev/sdc rw
28 22 8:33 / /mnt/cd rw - iso9660 /dev/sr0 ro
29 26 8:49 / /mnt/old ro - ext4 /dev/sdd rw
30 22 0:40 / /home rw - autofs automount rw
31 30 0:41 / /home/me rw - nfs4 server:/me rw
"""
TREE = {"/": ["dev", "home", "mnt", "proc", "tmp", "var"], "/mnt": ["cd", "my disk", "old", "own"]}


def test_the_mounts_are_read_with_their_names_and_the_last_one_at_a_place_counts() -> None:
    written = {"/", "/mnt/my disk", "/home/me"}
    places = {*written, "/dev", "/dev/shm", "/home", "/mnt/cd", "/mnt/old", "/proc"}
    assert parse_mounts(INFO) == {place: place in written for place in places}


def test_folders_without_mounts_are_covered_and_the_ones_around_mounts_are_named() -> None:
    layers, around = cover(parse_mounts(INFO), lambda folder: TREE.get(folder, []))
    assert (layers, around) == (["/mnt/my disk", "/home/me", "/mnt/own", "/tmp", "/var", "/var/tmp"], ["/", "/mnt"])


NAMES = ["a", "b", "dev", "home"]
PLACES = st.lists(st.sampled_from(NAMES), max_size=3).map(lambda names: "/" + "/".join(names))


@given(st.dictionaries(PLACES, st.booleans()).map(lambda mounts: {**mounts, "/": True}))
def test_no_layer_has_a_mount_in_it_and_all_that_can_be_written_is_covered(mounts: Mapping[str, bool]) -> None:
    layers, around = cover(mounts, lambda folder: NAMES if folder.count("/") < 4 else [])
    for layer in layers:
        assert not any(is_below(other, [layer]) for other in mounts if other != layer)
    for first in ("a", "b", "home"):
        for path in (f"/{first}", f"/{first}/a", f"/{first}/a/b", f"/{first}/home/b"):
            is_writable = mounts[max((point for point in mounts if is_below(path, [point])), key=len)]
            assert is_below(path, layers) or path in around or not is_writable


PROGRAM = """
import json, os, sys
from pathlib import Path
from samebits.machine.private_view import make_view
report, view = make_view(Path(sys.argv[1]))
if view is not None and os.fork() == 0:
    here = os.getcwd()
    view.join()
    os.chdir(here)
    Path("new.txt").write_text("new")
    Path("old.txt").unlink()
    os._exit(0)
if view is not None:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(json.dumps(report.problem))
"""
AS_ROOT, AS_USER = ("unshare", "-m"), ("unshare", "-Ur", "-m", "setpriv", "--bounding-set", "-sys_admin")


def viewed(here: Path, layers: Path, *around: str) -> str:
    """Let a process in a view change files in `here`; why there was no view."""
    if subprocess.run([*around, "true"], capture_output=True).returncode:
        pytest.skip("this system gives no private views")
    layers.mkdir(parents=True)
    command = [*around, sys.executable, "-c", PROGRAM, str(layers)]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=True)
    problem: str = json.loads(done.stdout)
    return problem


@pytest.mark.parametrize("around", [AS_ROOT, AS_USER], ids=["root", "user"])
def test_what_a_view_writes_stays_in_its_layers(tmp_path: Path, around: tuple[str, ...]) -> None:
    (tmp_path / "old.txt").touch()
    layers = tmp_path.parent / f"{tmp_path.name}-runs" / "layers"
    problem = viewed(tmp_path, layers, *around)
    if problem:  # the disk of temporary files carries no layers
        pytest.skip(problem)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]
    assert [path.name for path in layers.rglob("new.txt")] == ["new.txt"]


def test_a_working_directory_with_a_mount_in_it_has_no_view(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    around = [*AS_USER[:3], "sh", "-c", f'mount -t tmpfs none {tmp_path}/data && exec "$@"', "sh"]
    assert str(tmp_path) in viewed(tmp_path, tmp_path.parent / f"{tmp_path.name}-runs" / "layers", *around)
