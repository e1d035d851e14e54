"""A program that is killed while it replaces a state leaves a complete one, and the next save works."""

import subprocess
import sys

import pytest

from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import damage
from tests.support.launching import kill

pytestmark = pytest.mark.ranks

SAVER = """
import itertools, sys
from pathlib import Path
from samebits.protocol.state_files.flushed import write_synced
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile
for number in itertools.count():
    folder = StateFolder(sys.argv[1])
    folder.begin()
    text = b"%d " % number * 50_000
    write_synced(folder.stage / "a.json", text)
    write_synced(folder.stage / NAME, Manifest({"a.json": SavedFile.of(text)}, {"number": number}).encode())
    folder.install()
    print(number, flush=True)
"""


def test_a_kill_at_any_instant_leaves_a_complete_state(tmp_path):
    path, last = tmp_path / "state", -1
    for moment in range(1, 6):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(moment * 3):
            last = int(process.stdout.readline())
        kill(process.pid)
        last = max([last, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        place, manifest = StateFolder(path).read_manifest()
        assert damage(place, manifest) is None
        assert manifest.facts["number"] >= last
