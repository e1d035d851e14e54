"""The cases: scripts whose results are held, and on which ranks each of them runs.

A case has one result, whatever it runs on: a digest for each thing that the script brings forth. A row is one way to
run it. In stages no rank has the whole model, so such a row shows fewer things; the same ones must be equal.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import corner_cases, embeddings, scenarios
from tests.scripts.in_stages import ELSEWHERE, LOOKS_AT_ABSENT_GRADIENTS, without_digests
from tests.scripts.recipes import RECIPES, learned
from tests.scripts.registration import SCENARIOS
from tests.support.launching import Finished, start

__all__ = ["corner_cases", "embeddings", "scenarios"]  # they register

ROOT = Path(__file__).parents[2]
NOT_HELD = ("ranks", "strategy", "fingerprint", "sha256_of_the_rest")
"""What a state's manifest says about the run that wrote it: sizes of it, versions, and the hash over them."""
CLOCK = "time"
"""In the lines of metrics.jsonl."""
LIMIT_S = 300.0

Digests = dict[str, str]


class Refused(Exception):  # noqa: N818 - an answer
    """This strategy does not take this script, and says so."""


@dataclass(frozen=True)
class Way:
    """On how many ranks, and with which strategy."""

    ranks: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.ranks} {self.strategy}"

    @property
    def is_staged(self) -> bool:
        return self.strategy in ("model_parallel", "pipeline")


ALONE = Way(1, "ddp")
DIVIDED = [Way(ranks, strategy) for strategy in ("ddp", "zero1") for ranks in (2, 3, 4)]
CHOSEN = Way(2, "auto")
STAGED = [Way(2, "model_parallel"), Way(2, "pipeline")]


@dataclass(frozen=True)
class Case:
    """`run` returns the digests of one way, or raises `Refused`."""

    name: str
    ways: tuple[Way, ...]
    run: Callable[[Way], Digests]

    def __str__(self) -> str:
        return self.name


def digest(value: Any) -> str:
    """Of JSON values, with every bit of every number."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def flat(result: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The innermost values of nested mappings."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def of_scenario(scenario: Callable[[], dict[str, Any]], way: Way) -> Digests:
    started = Started(way.ranks, form=Form(way.strategy), timeout_s=LIMIT_S)
    try:
        results = run_ranks(without_digests, started, scenario) if way.is_staged else run_ranks(scenario, started)
    except RankFailed as failure:
        if failure.error_type != "UsageError":
            raise
        raise Refused(failure.message) from None
    absent = LOOKS_AT_ABSENT_GRADIENTS.get(scenario.__name__) if way.is_staged else None
    found = [
        {name: digest(value) for name, value in flat(result) if value != ELSEWHERE and name != absent}
        for result in results
    ]
    assert all(one == found[0] for one in found), f"the ranks of {way} differ: {found}"
    return found[0]


def of_recipe(recipe: str, way: Way) -> Digests:
    results = run_ranks(learned, Started(way.ranks, form=Form(way.strategy), timeout_s=LIMIT_S), [recipe])
    assert all(one == results[0] for one in results), f"the ranks of {way} differ: {results}"
    trained, last = results[0][recipe]
    return {"trained": trained, "logged last": digest(last)}


def launched(place: Path, way: Way, *script: str) -> Finished:
    """Run a script as a user starts it; its weights and its states are in `place`."""
    options = ("-n", str(way.ranks), "--threads", "1", "--strategy", "single" if way == ALONE else way.strategy)
    finished = start(place, *options, *script).finish()
    assert finished.code == 0, finished.err
    return finished


def of_run(folder: Path) -> Digests:
    """Everything that was logged, and the bits of models, optimizers and schedulers at the end."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [{name: value for name, value in line.items() if name != CLOCK} for line in lines]
    return {"logged": digest(logged), "bits": json.loads((folder / "result.json").read_text())["bits"]}


def of_state(folder: Path) -> Digests:
    """The files of a saved state."""
    manifest = json.loads((folder / "manifest.json").read_text())
    held = {name: value for name, value in manifest.items() if name not in NOT_HELD}
    files = {f"{folder.name}/{name}": of_file(folder / name) for name in manifest["files"]}
    return files | {f"{folder.name}/manifest.json": digest(held)}


def of_example(name: str, options: tuple[str, ...], way: Way) -> Digests:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        finished = launched(place, way, str(ROOT / "examples" / name), *options)
        assert finished.folder is not None
        weights = {path.name: of_file(path) for path in place.glob("*.safetensors")}
        return of_run(finished.folder) | weights | {"printed": digest(finished.out)}


def of_states(way: Way) -> Digests:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        launched(place, way, "--name", "golden", "--save-every", "2steps", str(ROOT / "tests/golden/saving.py"))
        runs = place / "samebits-runs" / "golden"
        [own] = [path for path in runs.iterdir() if (path / "result.json").exists()]
        digests = of_run(own)
        for state in [place / "state", *sorted((runs / "states").iterdir())]:
            digests |= of_state(state)
        return digests


def _scenario(scenario: Callable[[], dict[str, Any]]) -> Case:
    return Case(scenario.__name__, (ALONE, *DIVIDED, *STAGED), lambda way: of_scenario(scenario, way))


def _recipe(recipe: str) -> Case:
    return Case(f"recipe {recipe}", (ALONE, *DIVIDED[:2]), lambda way: of_recipe(recipe, way))


CASES = [
    Case("digits", (ALONE, CHOSEN, *DIVIDED, *STAGED), lambda way: of_example("digits.py", ("--epochs", "2"), way)),
    Case(
        "gpt",
        (ALONE, *DIVIDED[:2], *STAGED),
        lambda way: of_example("gpt.py", ("--steps", "3", "--test-every", "3"), way),
    ),
    Case("states", (ALONE, CHOSEN, *DIVIDED, *STAGED), of_states),
    *map(_recipe, RECIPES),
    *map(_scenario, SCENARIOS),
]
