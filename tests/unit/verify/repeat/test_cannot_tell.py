"""What is said where the script cannot be started while it is compared with a file."""

import json

import pytest

from samebits.cli.start_repeat import cannot_tell
from samebits.errors import UsageError


def test_the_problem_and_its_fix_are_said_once(capsys):
    with pytest.raises(SystemExit) as ending:
        cannot_tell(UsageError("There is no script a.py.", "Check the path."), as_json=True)
    assert ending.value.code == 125
    assert json.loads(capsys.readouterr().out)["why"] == "There is no script a.py. Check the path."
