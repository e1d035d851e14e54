"""The workflow files say what the repository says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

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


NOT_LOOKED_UP = {"pypa/gh-action-pypi-publish@release/v1"}
"""Their newest commit could not be looked up: whoever can replaces the branch by it."""


def test_actions_of_others_are_pinned_by_commit_with_their_version_or_named_as_not_looked_up() -> None:
    files = [path for path in (ROOT / ".github").rglob("*.yml") if path.parent.name != "ISSUE_TEMPLATE"]
    used = [(path, line) for path in files for line in re.findall(r"\buses: (.*)", path.read_text())]
    assert len(used) > 15
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    loose = {line.partition(" ")[0] for path, line in used if not (pinned.fullmatch(line) or line.startswith("./"))}
    assert loose == NOT_LOOKED_UP
    commits = {
        line.partition("@")[0]: {other for _, other in used if other.startswith(line.partition("@")[0] + "@")}
        for _, line in used
    }
    assert [name for name, versions in commits.items() if len(versions) != 1] == [], "one version of each everywhere"


def test_a_workflow_that_never_ran_says_so_at_its_top_and_no_page_names_it() -> None:
    path = ROOT / ".github" / "workflows" / "elsewhere.yml"
    assert path.read_text().startswith("# Never run: ")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if path.name in page.read_text()] == []


ACTION = ROOT / ".github" / "actions" / "verify" / "action.yml"


def steps_of_the_action() -> list[dict[str, object]]:
    return yaml.safe_load(ACTION.read_text())["runs"]["steps"]  # type: ignore[no-any-return]


def test_the_action_uses_all_inputs_that_it_declares_and_no_text_of_theirs_is_code() -> None:
    declared = yaml.safe_load(ACTION.read_text())["inputs"]
    assert set(re.findall(r"inputs\.(\w+)", ACTION.read_text())) == set(declared)
    for step in steps_of_the_action():
        assert step["shell"] == "bash"
        run = str(step["run"])
        assert "${{" not in run, "a pull request could write what the shell then runs"
        assert set(re.findall(r"\$\{?([A-Z]+)\b", run)) - {"GITHUB_STEP_SUMMARY"} == set(step["env"])  # type: ignore[call-overload]
        subprocess.run(["bash", "-n"], input=run, text=True, check=True)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"SCRIPT": "a b.py", "ARGS": "--any *"}, "There is no script a b.py"),
        ({"SCRIPT": "train.py", "OPTIONS": "--repeat 2 --steps 0"}, "--steps must be more than 0"),
        ({"SCRIPT": "train.py", "AGAINST": "the bits.json"}, "--against the bits.json cannot be read"),
    ],
)
def test_the_action_gives_its_inputs_to_verify(tmp_path: Path, inputs: dict[str, str], said: str) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "PATH": path}
    environment = {**os.environ, "ARGS": "", "AGAINST": "", "OPTIONS": "", **inputs, **summary}
    command = ["bash", "-e", "-c", str(steps_of_the_action()[-1]["run"])]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
