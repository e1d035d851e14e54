"""The recipes of docs/recipes.md: each learns, has the same bits on one rank and on two, and is proved by verify."""

from __future__ import annotations

import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.testing.digests import digest_of
from lockstep.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
RECIPES = {
    "averaged_weights": ("accuracy", 0.9, None),
    "carried_state": ("loss", None, 3.2),
    "closures": ("loss", None, 0.1),
    "contrastive": ("loss", None, 4.0),
    "environments": ("stood", 27.0, None),
    "grown_classifier": ("accuracy", 0.9, None),
    "mixup": ("loss", None, 1.5),
    "random_crops": ("loss", None, 3.2),
    "two_data_sets": ("accuracy", 0.7, None),
}
"""What each logs last, and the least or the greatest value that shows it has learned."""
INTENDED = {"environments"}
"""Lanes that draw on their own: the row plain cannot agree, and is accepted."""


def learned(recipes: list[str]) -> dict[str, tuple[str, float]]:
    """The digest of what each recipe trained, and what it logged last."""
    results = {}
    for recipe in recipes:
        last: dict[str, float] = {}
        log = lockstep.Run.log

        def keep(run: lockstep.Run, log: Any = log, last: dict[str, float] = last, **values: Any) -> None:
            last.update({name: float(value) for name, value in values.items()})
            log(run, **values)

        lockstep.Run.log = keep  # type: ignore[method-assign]
        names = runpy.run_path(str(ROOT / f"examples/recipes/{recipe}.py"))
        lockstep.Run.log = log  # type: ignore[method-assign]
        trained = names.get("average", names.get("model", names.get("policy")))
        results[recipe] = digest_of(trained), last[RECIPES[recipe][0]]
    return results


@pytest.mark.thorough
def test_recipes_learn_and_have_the_same_bits_on_one_rank_and_on_two() -> None:
    [alone] = run_ranks(learned, Started(1), list(RECIPES))
    for results in run_ranks(learned, Started(2), list(RECIPES)):
        assert {recipe: digest for recipe, (digest, _) in results.items()} == {
            recipe: digest for recipe, (digest, _) in alone.items()
        }
    for recipe, (_, least, most) in RECIPES.items():
        assert (least or 0.0) <= alone[recipe][1] <= (most or math.inf), (recipe, alone[recipe])


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
