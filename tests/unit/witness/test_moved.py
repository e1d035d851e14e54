"""What another commit imports comes from that commit, though PYTHONPATH or an editable install names this tree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.verify.repeat.recorded import read_made
from samebits.verify.repeat.started import SITE, Ended
from samebits.witness.moved import in_commit

TRAIN = """
import torch, sys
{way}
import package
weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
torch.optim.SGD([weight], lr=0.1).step()
print(package.__file__)
"""
FINDER = "__editable___package_finder"


@pytest.fixture
def trees(tmp_path):
    """This tree and the commit's, each with the package, and a folder that git does not know."""
    root, place = tmp_path / "root", tmp_path / "place"
    for one in (root, place):
        (one / "src" / "package").mkdir(parents=True)
        (one / "src" / "package" / "__init__.py").touch()
    (root / "unknown").mkdir()
    (place / "unknown").symlink_to(root / "unknown")
    return root, place


def test_only_what_the_commit_has_itself_is_moved(trees):
    root, place = map(str, trees)
    assert in_commit(f"{root}/src", root, place) == f"{place}/src"
    for other in (f"{root}/unknown", f"{root}/nowhere", f"{place}/src", f"{root}-other", "/usr", ""):
        assert in_commit(other, root, place) == ""


@pytest.mark.parametrize(("way", "is_moved"), [("PYTHONPATH", True), ("finder", True), ("sys.path", False)])
def test_a_package_named_by_its_place_is_the_commit_s_or_nothing_is_compared(tmp_path, trees, way, is_moved):
    root, place = trees
    paths = root / "src" if way == "PYTHONPATH" else None
    text = ""
    if way == "sys.path":
        text = f"sys.path.insert(0, {str(root / 'src')!r})"
    elif way == "finder":
        paths = tmp_path / "own"
        paths.mkdir()
        # As a .pth file imports what setuptools writes for an editable install.
        (paths / f"{FINDER}.py").write_text(f"MAPPING = {{'package': {str(root / 'src/package')!r}}}")
        text = (
            f"import {FINDER} as finder; from _samebits_witness.moved import import_from_commit as move; "
            f"move({str(root)!r}, {str(place)!r}); sys.path.insert(0, finder.MAPPING['package'].rpartition('/')[0])"
        )
    (tmp_path / "train.py").write_text(TRAIN.format(way=text))
    wanted = {"folder": str(tmp_path), "steps": 9, "moved": [str(root), str(place)]}
    environment = {
        **os.environ,
        "SAMEBITS_WITNESS": json.dumps(wanted),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, (SITE, paths, os.environ.get("PYTHONPATH"))))),
    }
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()).is_relative_to(place if is_moved else root)
    made = read_made(Ended("run 1", tmp_path, 0, 1.0), 60.0)
    assert isinstance(made, str) is not is_moved
    if not is_moved:
        assert f"imported {root}/src/package/__init__.py of this tree" in made
