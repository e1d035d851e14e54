"""The recipes of docs/recipes.md: each script learns, has the same bits on one rank and on two, and is proved by verify."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import start

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
RECIPES = {
    "averaged_weights": ("accuracy", 0.9, None),
    "carried_state": ("loss", None, 3.0),
    "closures": ("loss", None, 0.1),
    "contrastive": ("loss", None, 4.0),
    "environments": ("stood", 30.0, None),
    "mixup": ("loss", None, 1.5),
    "random_crops": ("loss", None, 3.0),
    "two_data_sets": ("accuracy", 0.7, None),
}
"""What each logs last, and the least or the greatest value that shows it has learned."""
INTENDED = {"environments"}
"""Lanes that draw by themselves: the row plain cannot agree, and is accepted."""


def logged(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_and_has_the_same_bits_on_one_rank_and_on_two(tmp_path: Path, recipe: str) -> None:
    name, least, most = RECIPES[recipe]
    bits = []
    for ranks in ("1", "2"):
        ended = start(tmp_path, "-n", ranks, str(ROOT / f"examples/recipes/{recipe}.py")).finish()
        assert ended.code == 0, ended.err
        assert "note" not in ended.err, ended.err
        bits += re.findall(r"^bits +(sha256:\w+)", ended.err, re.MULTILINE)
        last = logged(ended.folder, name)[-1]
        assert (least or last) <= last <= (most or last)
    assert len(bits) == 2
    assert bits[0] == bits[1]


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
def test_verify_proves_a_recipe_on_1_2_3_and_4_ranks(tmp_path: Path, recipe: str) -> None:
    accepted = ["--accept", "plain"] * (recipe in INTENDED)
    command = ["verify", "--ranks", "1,2,3,4", "--steps", "4", *accepted, str(ROOT / f"examples/recipes/{recipe}.py")]
    ended = subprocess.run([sys.executable, "-m", "lockstep", *command], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_quotes_every_recipe() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    quoted = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", page, re.DOTALL)
    assert {Path(name).stem for name, _ in quoted} == set(RECIPES)
    assert {path.stem for path in (ROOT / "examples/recipes").glob("*.py")} == set(RECIPES)
    for name, text in quoted:
        for part in text.split("...\n"):
            assert part in (ROOT / name).read_text(), name
