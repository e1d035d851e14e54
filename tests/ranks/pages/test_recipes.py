"""The recipes of docs/recipes.md: each learns, has the same bits on one rank and on two, and is proved by verify."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.testing.ranks import Started, run_ranks
from tests.scripts.recipes import RECIPES, ROOT, learned
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

INTENDED = {"environments", "replay_buffer"}
"""Lanes that draw on their own: the row plain cannot agree, and is accepted."""


@promise(
    "same-bits",
    "The [recipes](recipes.md) learn, and `samebits verify` proves them on 1, 2, 3 and 4 ranks",
    also=["test_verify_proves_a_recipe_on_1_2_3_and_4_ranks"],
)
@pytest.mark.thorough
def test_recipes_learn_and_have_the_same_bits_on_one_rank_and_on_two() -> None:
    [alone] = run_ranks(learned, Started(1), list(RECIPES))
    for results in run_ranks(learned, Started(2), list(RECIPES)):
        assert {recipe: digest for recipe, (digest, _) in results.items()} == {
            recipe: digest for recipe, (digest, _) in alone.items()
        }
    for recipe, (_, least, most) in RECIPES.items():
        assert least <= alone[recipe][1] <= most, (recipe, alone[recipe])


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
def test_verify_proves_a_recipe_on_1_2_3_and_4_ranks(tmp_path: Path, recipe: str) -> None:
    accepted = ["--accept", "plain"] * (recipe in INTENDED)
    command = ["verify", "--ranks", "1,2,3,4", "--steps", "4", *accepted, str(ROOT / f"examples/recipes/{recipe}.py")]
    ended = subprocess.run([sys.executable, "-m", "samebits", *command], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_quotes_every_recipe() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    quoted = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", page, re.DOTALL)
    assert {Path(name).stem for name, _ in quoted} == set(RECIPES)
    assert {path.stem for path in (ROOT / "examples/recipes").glob("*.py")} == set(RECIPES)
    for name, text in quoted:
        for part in text.split("...\n"):
            assert part in (ROOT / name).read_text(), name
