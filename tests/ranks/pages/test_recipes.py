"""The recipes of docs/recipes.md: each learns, has the same bits on one rank and on two, and is proved by verify."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.recipes import RECIPES, ROOT, learned
from tests.support.launching import start
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
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_learn_and_have_the_same_bits_on_one_rank_and_on_two(recipe: str) -> None:
    [alone] = run_ranks(learned, Started(1), [recipe])
    assert {results[recipe][0] for results in run_ranks(learned, Started(2), [recipe])} == {alone[recipe][0]}
    _, least, most = RECIPES[recipe]
    assert least <= alone[recipe][1] <= most, alone


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
def test_verify_proves_a_recipe_on_1_2_3_and_4_ranks(tmp_path: Path, recipe: str) -> None:
    accepted = ["--accept", "plain"] * (recipe in INTENDED)
    command = ["verify", "--ranks", "1,2,3,4", "--steps", "4", *accepted, str(ROOT / f"examples/recipes/{recipe}.py")]
    ended = subprocess.run([sys.executable, "-m", "samebits", *command], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def text_of(function: str, recipe: str) -> str:
    """The source of a recipe's function, with its decorators."""
    source = (ROOT / f"examples/recipes/{recipe}.py").read_text()
    [node] = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == function]
    return "\n".join(source.splitlines()[node.decorator_list[0].lineno - 1 : node.end_lineno]) + "\n"


def evaluated(text: str) -> list[dict[str, float]]:
    """What `evaluate` says of a fixed model: over all of 150 samples, in batches of 20, and over the first batches."""
    run = samebits.init(seed=0, lanes=4, threads=1)
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "run": run}
    exec(text, names)
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Dropout(0.5))
    x, y = torch.randn(150, 8), torch.randint(3, (150,))
    model, loader = run.prepare(model, DataLoader(TensorDataset(x, y), batch_size=20))
    found = [names["evaluate"](model, loader, limit) for limit in (None, 1, 3, 7, 99)]
    assert model.training, "as it was"
    scores = model.eval()(x)
    for limit, one in zip((150, 20, 60, 140, 150), found, strict=True):
        right = (scores[:limit].argmax(1) == y[:limit]).float().mean()
        assert one["accuracy"] == pytest.approx(float(right))
        assert one["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores[:limit], y[:limit])))
    return found


def test_the_evaluate_that_people_copy_is_right_on_1_2_and_3_ranks_with_and_without_a_limit() -> None:
    text = text_of("evaluate", "weight_ema")
    assert f"```python\n{text}" in (ROOT / "docs/guide/loop.md").read_text()
    [alone] = run_ranks(evaluated, Started(1), text)
    for ranks in (2, 3):
        assert run_ranks(evaluated, Started(ranks), text) == [alone] * ranks


@pytest.mark.thorough
def test_text_that_is_drawn_in_the_middle_of_training_changes_no_bit(tmp_path: Path) -> None:
    told = []
    for samples in ("0", "3"):
        place = tmp_path / samples
        place.mkdir()
        finished = start(
            place, "-n", "2", str(ROOT / "examples/recipes/samples_between.py"), env={"SAMPLES": samples}
        ).finish()
        assert "drew different random numbers" not in finished.err
        told.append((finished.bits, len(finished.out.splitlines())))
    (without, none), (with_samples, texts) = told
    assert (without, none, texts) == (with_samples, 0, 27)


def test_the_page_quotes_every_recipe() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    quoted = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", page, re.DOTALL)
    assert {Path(name).stem for name, _ in quoted} == set(RECIPES)
    assert {path.stem for path in (ROOT / "examples/recipes").glob("*.py")} == set(RECIPES)
    for name, text in quoted:
        for part in text.split("...\n"):
            assert part in (ROOT / name).read_text(), name
