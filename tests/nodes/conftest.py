"""What tests of srun and mpirun share."""

from pathlib import Path

import pytest

from tests.scripts.task_text import TASK
from tests.support.launching import write_script
from tests.support.tasks import bits_of_one_rank


@pytest.fixture
def script(tmp_path: Path) -> str:
    """The script of the tasks."""
    return write_script(tmp_path, TASK)


@pytest.fixture(scope="session")
def bits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one rank."""
    return bits_of_one_rank(tmp_path_factory.mktemp("alone"))
