"""`samebits watch` and `diagnose` of a run that is stuck, and of the same one when its launcher was killed."""

import json
import subprocess
import sys

import pytest

from tests.ranks.launcher.test_stalls import TRAIN
from tests.support.launching import start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def samebits(place, *arguments):
    done = subprocess.run([sys.executable, "-m", "samebits", *arguments], cwd=place, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@promise(
    "never-stuck-nothing-left-behind",
    "`watch` and `diagnose` tell what each rank of a stuck run does, also when its launcher was killed; "
    "64 ranks fit 80 x 24; what is no run is one sentence",
    also=[
        "test_what_is_no_run_is_one_sentence_with_a_fix",
        "test_the_table_of_64_ranks_fits_a_terminal_and_keeps_numbers_states_and_lines",
    ],
)
def test_a_stuck_run_is_told_from_outside_and_when_its_launcher_is_gone(tmp_path):
    run = start(tmp_path, "-v", "-n", "2", write_script(tmp_path, TRAIN), "sleep")
    try:
        until((tmp_path / "once").exists, "the sleep")
        code, text = samebits(tmp_path, "watch", "--json")
        ranks = json.loads(text)["ranks"]
        assert (code, [rank["pid"] for rank in ranks]) == (0, [run.pid_of(0), run.pid_of(1)])
        code, text = samebits(tmp_path, "diagnose")
        assert code == 1, text
        assert "under way: 2 of 2 ranks have a process" in text
        assert "rank 1 has not reached the exchange of gradients of step 6 (script.py:35)" in text
        assert "rank 1 is at script.py:47" in text
    finally:
        run.clean_up()
    until(lambda: not run.processes(), "the end of all processes")
    code, text = samebits(tmp_path, "diagnose")
    assert code == 1, text
    assert "ended without an outcome: the launcher was killed, or the machine went down" in text
