"""Which line a failure names."""

from pathlib import Path

import pytest

from samebits.errors import UsageError
from samebits.protocol.journal.failure import describe

SCRIPT = Path("/home/ada/project/train.py")


def raised_through(*files: str) -> UsageError:
    """A misuse as it is raised where a line of each file has called the next one's."""

    def misuse() -> None:
        raise UsageError("This is wrong.", "Do that.")

    call = misuse
    for file in reversed(files):
        names = {"call": call}
        exec(compile("def here():\n    call()", file, "exec"), names)
        call = names["here"]
    with pytest.raises(UsageError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([str(SCRIPT)], str(SCRIPT)),
        ([str(SCRIPT), "/home/ada/project/models/net.py"], "/home/ada/project/models/net.py"),
        ([str(SCRIPT), "/home/ada/project/venv/lib/python3.11/site-packages/torch/nn/module.py"], str(SCRIPT)),
        ([str(SCRIPT), "/home/ada/elsewhere/library.py"], str(SCRIPT)),
    ],
)
def test_a_misuse_names_the_innermost_line_of_the_users_files(files: list[str], named: str) -> None:
    failure = describe(1, raised_through(*files), SCRIPT, ())
    assert (failure.rank, failure.file, failure.line) == (1, named, 2)
    assert failure.mistake == ("This is wrong.", "Do that.")
