"""Run the recipes of docs/recipes.md inside a rank, and say what each has learned."""

import math
import runpy
from pathlib import Path
from typing import Any

import samebits
from samebits.testing.digests import digest_of

ROOT = Path(__file__).parents[2]
RECIPES = {
    "averaged_weights": ("accuracy", 0.9, math.inf),
    "carried_state": ("loss", 0.0, 3.2),
    "closures": ("loss", 0.0, 0.1),
    "code_book": ("loss", 0.0, 0.1),
    "contrastive": ("loss", 0.0, 4.0),
    "ema_teacher": ("loss", 0.0, 1.2),
    "environments": ("stood", 27.0, math.inf),
    "folds": ("accuracy", 0.9, math.inf),
    "grown_classifier": ("accuracy", 0.9, math.inf),
    "image_pool": ("apart", 0.0, 0.15),
    "mixup": ("loss", 0.0, 1.5),
    "random_crops": ("loss", 0.0, 3.2),
    "replay_buffer": ("stood", 50.0, math.inf),
    "samples_between": ("loss", 0.0, 2.5),
    "two_data_sets": ("accuracy", 0.7, math.inf),
    "weight_ema": ("accuracy", 0.88, math.inf),
    "whole_graph": ("accuracy", 0.85, math.inf),
}
"""What each logs last, and the least and the greatest value that shows it has learned."""

TRAINED = ("average", "model", "policy", "generator")
"""What the recipes call what they train; the first that is there counts."""


def learned(recipes: list[str]) -> dict[str, tuple[str, float]]:
    """The digest of what each recipe trained, and what it logged last."""
    results = {}
    for recipe in recipes:
        last: dict[str, float] = {}
        log = samebits.Run.log

        def keep(run: samebits.Run, log: Any = log, last: dict[str, float] = last, **values: Any) -> None:
            last.update({name: float(value) for name, value in values.items()})
            log(run, **values)

        samebits.Run.log = keep  # type: ignore[method-assign]
        names = runpy.run_path(str(ROOT / f"examples/recipes/{recipe}.py"))
        samebits.Run.log = log  # type: ignore[method-assign]
        trained = next(names[name] for name in TRAINED if name in names)
        results[recipe] = digest_of(trained), last[RECIPES[recipe][0]]
    return results
