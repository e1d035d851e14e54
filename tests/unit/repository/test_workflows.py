"""The workflow files say what the repository says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from samebits.machine.torch_versions import TESTED

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def matrix(name: str) -> list[str]:
    """A row of the matrix of tests."""
    found = re.search(rf"^ +{name}: (\[.*\])$", (ROOT / ".github/workflows/test.yml").read_text(), re.MULTILINE)
    assert found is not None, name
    return re.findall(r"[\d.]+", found[1])


def test_every_supported_torch_and_the_oldest_python_are_tried() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    default = re.search(r"^torch==([\d.]+)", constraints, re.MULTILINE)
    assert default is not None
    assert {*matrix("torch"), default[1]} == set(TESTED)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={matrix('python')[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile_with_the_rights_that_they_name(path: Path) -> None:
    text, makefile = path.read_text(), (ROOT / "Makefile").read_text()
    assert "\npermissions: {contents: read}\n" in text
    listed = re.findall(r"target: \[(.*)\]", text)
    targets = re.findall(r"\bmake ([a-z][\w-]+)", text) + [one.strip() for names in listed for one in names.split(",")]
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    assert "secrets." not in text
