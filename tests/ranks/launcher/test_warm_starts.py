"""Most tests fork their launchers from a process that has imported torch; what a script sees must not tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import launching
from tests.support.launching import kill, run_script, start, until, write_script
from tests.support.seen_by_a_script import ENDS, SCRIPT, seen

pytestmark = pytest.mark.ranks


@pytest.mark.thorough
@pytest.mark.parametrize(("threads", "code"), [("1", 0), ("2", 3)])
def test_a_script_cannot_tell_whether_its_launcher_was_forked(tmp_path: Path, threads: str, code: int) -> None:
    script, both = write_script(tmp_path, SCRIPT), []
    for is_cold in (True, False):
        ended = start(
            tmp_path, "-n", "1", "--threads", threads, script, "told.json", str(code), is_cold=is_cold
        ).finish()
        assert ended.code == code, ended.err
        both.append(seen(tmp_path, ended))
    cold, warm = both
    assert sorted(cold["end"]) == sorted(ENDS), cold["end"]
    assert cold["kept"] == "buffered"
    for name, value in cold.items():
        assert warm[name] == value, name


@pytest.mark.thorough
def test_where_the_time_limit_of_a_test_has_ended_the_server_the_next_test_gets_another_one(tmp_path: Path) -> None:
    server = launching.server()
    kill(server.pid)
    until(lambda: server.has_ended, "the end of the server")
    assert run_script(tmp_path, "print('here')", "-n", "1").code == 0
