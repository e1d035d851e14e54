"""What a script draws before it calls `samebits.init`, or without ever doing so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import run_script, start_python, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

DRAWS = """
    import random, numpy, torch
    from torch.utils.data import DataLoader, get_worker_info
    def seed_of(_batch):
        return get_worker_info().seed
    def draws():
        worker = next(iter(DataLoader([0], num_workers=1, collate_fn=seed_of)))
        return random.random(), numpy.random.rand(), torch.rand(1, dtype=torch.float64).item(), torch.initial_seed(), worker
"""


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "A script without `samebits.init` draws other random numbers on each rank and at each start, as under "
    "torchrun; settings that it makes too late are named",
    also=["test_a_script_without_init_is_told_when_it_makes_its_group"],
)
@pytest.mark.parametrize(
    "start_as", [(), pytest.param(("--start-method=spawn",), marks=pytest.mark.thorough)], ids=["fork", "fresh"]
)
@pytest.mark.thorough
def test_a_script_without_init_draws_other_numbers_on_each_rank_and_at_each_start(
    tmp_path: Path, start_as: tuple[str, ...]
) -> None:
    script = DRAWS + "    import samebits  # but not samebits.init\n    print(*draws(), sep='\\n')\n"
    drawn = []
    for start in range(2):
        (place := tmp_path / str(start)).mkdir()
        ended = run_script(place, script, "-n", "2", *start_as)
        assert ended.code == 0, ended.err
        drawn += [ended.log(rank).split() for rank in range(2)]
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [4] * 5


def test_a_script_with_init_draws_the_same_before_it_on_every_rank(tmp_path: Path) -> None:
    script = (
        DRAWS
        + """
    import samebits
    first = draws()[:3]
    model = torch.nn.Linear(2, 1)
    run = samebits.init(lanes=2, threads=1)
    model = run.prepare(model)
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    assert first == draws()[:3], "as with seed 0 of each"
    print(first)
    """
    )
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0, ended.err
    assert ended.log(0) == ended.log(1) != ""
    assert "same random numbers" not in ended.err


@pytest.mark.thorough
def test_a_model_made_before_an_init_that_cannot_be_seen_is_named(tmp_path: Path) -> None:
    script = """
        import torch, samebits
        model = torch.nn.Linear(2, 1)
        run = getattr(samebits, "in" + "it")(lanes=2, threads=1)
        run.prepare(model)
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 2
    assert "different values on rank 1" in ended.err and "after samebits.init()" in ended.err


@pytest.mark.parametrize("seed", ["", "torch.manual_seed(0)"])
@pytest.mark.thorough
def test_a_call_of_init_that_is_left_out_is_said_unless_the_script_seeds(tmp_path: Path, seed: str) -> None:
    script = f"""
        import sys, torch, samebits
        {seed}
        if "--samebits" in sys.argv:
            samebits.init()
        torch.rand(1)
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0
    assert ended.err.count("every rank drew the same random numbers") == (not seed)


@pytest.mark.thorough
@pytest.mark.parametrize(("call", "num_different"), [("", 2), ("samebits.init(lanes=2, threads=1)", 1)])
def test_functions_of_spawn_are_seeded_by_the_same_rule(tmp_path: Path, call: str, num_different: int) -> None:
    script = f"""
        import samebits, torch
        def train(rank, folder):
            with open(f"{{folder}}/{{rank}}", "w") as file:
                file.write(str(torch.rand(1).item()))
            {call}
        samebits.spawn(train, args=({str(tmp_path)!r},), nprocs=2)
    """
    ended = start_python(tmp_path, write_script(tmp_path, script)).finish()
    assert ended.code == 0, ended.err
    assert len({(tmp_path / str(rank)).read_text() for rank in range(2)}) == num_different
