"""The folder of snapshots in shared memory lives from the first ranks' start to the end of the run."""

from __future__ import annotations

from pathlib import Path

from samebits.launcher.choices import Recover, Recovery
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.supervise.starting import SnapshotFolder


def test_it_is_made_when_ranks_start_and_removed_at_the_end(tmp_path: Path) -> None:
    recovery = Recovery(recover=Recover.AUTO)
    request = LaunchRequest(
        EntryPoint(Path("x.py")), Placement(1, 1, "cpu"), Output(tmp_path / "run"), recovery=recovery
    )
    with SnapshotFolder(request) as snapshots:
        assert snapshots.place is not None
        folder = Path(snapshots.place.folder)
        assert not folder.exists()  # a launcher that is killed before its nursery is up leaves nothing
        for _ in range(2):  # ranks may start again
            snapshots.make()
            assert folder.is_dir()
    assert not folder.exists()
