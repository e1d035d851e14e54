"""What killed runs left is removed and named; nothing that somebody holds is."""

from __future__ import annotations

import os

from click.testing import CliRunner

from samebits.cli.main import commands
from samebits.machine.held_folder import make_held
from samebits.machine.leftovers import SHARED_MEMORY


def test_what_nobody_holds_is_removed_and_the_rest_stays() -> None:
    left, held = (SHARED_MEMORY / f"samebits-kept-{os.getpid()}-{digit * 16}" for digit in "ab")
    os.close(make_held(left))
    lock = make_held(held)
    try:
        done = CliRunner().invoke(commands, ["clean"])
        assert done.exit_code == 0, done.output
        assert f"removed {left}" in done.output.splitlines()
        assert (left.exists(), held.exists()) == (False, True)
    finally:
        os.close(lock)
    assert f"removed {held}" in CliRunner().invoke(commands, ["clean"]).output
