"""Which runs are compared, by the options."""

import sys
from pathlib import Path

from samebits.cli.start_repeat import sides_from
from samebits.verify.repeat.started import Command

COMMAND = Command(Path("train.py"), None, (), sys.executable)


def sides(**options):
    return sides_from({"repeat": None, "python": None, **options}, COMMAND, None, is_alone=False)


def test_two_environments_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / one / "venv" / "bin" / "python" for one in ("old", "new")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.symlink_to(sys.executable)
    assert [one.label for one in sides(python=",".join(map(str, paths)))] == [str(path) for path in paths]
    other = tmp_path / "new" / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    assert [one.label for one in sides(python=f"{paths[0]},{other}")] == ["venv", "other"]


def test_a_script_is_run_twice_where_nobody_says_how_often():
    assert [one.label for one in sides()] == ["run 1", "run 2"]
    assert len(sides(repeat=3)) == 3
