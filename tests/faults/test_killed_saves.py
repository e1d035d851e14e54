"""A program that is killed while it replaces a state leaves a complete one, and the next save works."""

import subprocess
import sys

import pytest

from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import damage
from tests.support.launching import kill
from tests.support.promises import promise

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


@promise(
    "save-and-resume",
    "A kill at any instant or system call, a cut of the power, and a full, broken or read-only disk at "
    "any call leave the older or the newer state, whole; training goes on, and the next save works",
    also=[
        "test_a_kill_at_any_system_call_of_a_save_leaves_the_older_or_the_newer_state",
        "test_a_cut_of_the_power_leaves_the_older_or_the_newer_state_and_the_newer_once_a_save_has_returned",
        "test_a_disk_that_fails_is_said_by_that_save_and_the_next_one_works",
        "test_a_run_that_is_killed_while_it_saves_by_itself_goes_on_with_the_same_bits",
        "test_a_cut_of_the_power_while_a_run_saves_by_itself_leaves_what_goes_on_with_the_same_bits",
        "test_a_run_whose_disk_fails_while_it_saves_by_itself_says_so_goes_on_and_saves_the_next_step",
        "test_a_full_or_read_only_place_of_states_is_said_at_once_and_older_states_stay",
        "test_a_full_disk_is_said_on_every_rank_and_leaves_the_older_state",
    ],
)
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
