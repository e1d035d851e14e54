"""The benchmarks' arithmetic: medians, goals, limits; and what their command line refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.__main__ import main, objection, parse  # noqa: E402
from benchmarks.catalogue import PARTS, Amount, Measurement, Part  # noqa: E402
from benchmarks.limits import cache_bytes  # noqa: E402
from benchmarks.parts.collectives import WINDOWS, Case  # noqa: E402
from benchmarks.parts.lost import measure_loss  # noqa: E402
from benchmarks.parts.memory import pss_bytes  # noqa: E402
from benchmarks.parts.sides import take_turns  # noqa: E402
from benchmarks.parts.steps import phases  # noqa: E402
from benchmarks.parts.transport import lines_of  # noqa: E402
from benchmarks.pictures import draw_steps, rows  # noqa: E402
from benchmarks.summary import (  # noqa: E402
    BACKWARD,
    EXCHANGE,
    FORWARD,
    REST,
    UPDATE,
    Aim,
    Line,
    best,
    compare,
    compare_removed,
    spread,
    table,
)

AMOUNTS = st.floats(1.0, 1e9)


@pytest.mark.parametrize(
    ("goal", "limit_goal", "met"), [(3.0, 0.8, True), (3.1, 0.0, False), (2.9, 0.9, False), (0.0, 0.0, None)]
)
def test_a_line_is_the_ratio_of_the_medians_and_meets_its_goals_when_ratio_and_limit_do(goal, limit_goal, met) -> None:
    aim = Aim("C1", "sum", goal, limit_goal)
    line = compare(aim, ("ours", [2.0, 9.0, 2.0]), ("other", [6.0, 6.0, 50.0]), ("copy", [1.7] * 3))
    assert (line.amount, line.other_amount, line.result, line.met) == (2.0, 6.0, 3.0, met)
    assert line.reached == pytest.approx(0.85)


@pytest.mark.parametrize(("amounts", "met"), [([0.9], True), ([1.1], False), ([-5.0], None)])
def test_an_amount_meets_its_goal_when_it_is_smaller_and_says_nothing_when_it_is_noise(amounts, met) -> None:
    assert compare(Aim("C11", "", 1.0), ("a", amounts)).met is met


@pytest.mark.parametrize(("ours", "removed"), [(60.0, 1.0), (70.0, 0.75), (110.0, -0.25)])
def test_what_is_removed_is_the_part_of_the_surplus_that_is_gone(ours, removed) -> None:
    line = compare_removed(Aim("C5", "", 0.85), ("ours", [ours]), ("Gloo", [100.0]), ("without", [60.0]))
    assert line.result == pytest.approx(removed)
    assert line.met is (removed >= 0.85)


@given(st.lists(AMOUNTS, min_size=1, max_size=40))
def test_the_spread_of_one_side_lies_between_its_least_and_most(amounts) -> None:
    result, least, most = spread(lambda of: of["a"], {"a": amounts})
    assert min(amounts) <= least <= result <= max(amounts) or min(amounts) <= result <= most <= max(amounts)
    with pytest.raises(ValueError, match="rounds"):
        spread(lambda of: of["a"], {"a": amounts, "b": []})


def test_the_best_side_has_the_smallest_median_and_not_the_smallest_round() -> None:
    assert best({"DDP 1 MiB": [1.0, 9.0, 9.0], "DDP 4 MiB": [5.0, 5.0, 5.0]}) == "DDP 4 MiB"


def test_a_ratio_that_misses_a_goal_does_not_read_like_the_goal() -> None:
    for ratio, text in ((0.9899, "0.989x"), (0.9951, "0.995x"), (1.004, "1.00x")):
        shown = table([compare(Aim("C8", "alone", 0.99), ("single", [100.0]), ("bare loop", [100.0 * ratio]))])
        assert f" {text} " in shown


def test_what_the_kernel_writes_is_read() -> None:
    assert [cache_bytes(text) >> 20 for text in ("32768K\n", "16M", "", "x")] == [32, 16, 32, 32]
    assert pss_bytes("00400000-7ff [rollup]\nRss:  900 kB\nPss:      12 kB\nPss_Dirty: 3 kB\n") == 12 << 10


def test_the_parts_of_a_step_add_up_and_what_backward_takes_longer_is_exchange() -> None:
    told = {"ours": {FORWARD: 10.0, BACKWARD: 35.0, UPDATE: 5.0}, "no exchange": {BACKWARD: 20.0}}
    found = phases("ours", 60.0, told)
    assert found == {FORWARD: 10.0, BACKWARD: 20.0, EXCHANGE: 15.0, UPDATE: 5.0, REST: 10.0}


def test_sides_take_turns_and_the_warm_up_does_not_count() -> None:
    seen: list[str] = []
    sides = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    times = take_turns(sides, 3, warm_up=1, barrier=lambda: seen.append("|"))
    assert seen == list("|a|b|b|a|a|b|b|a".replace("|", "|"))
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_each_way_has_a_limit_of_its_own_and_only_windows_have_a_goal() -> None:
    times = {"Gloo": [40e6], "windows": [4e6], "ordinary tensors": [20e6], "torch.distributed": [21e6]}
    limits = {"least work": [3.5e6], "least copies": [19e6]}
    lines = lines_of(Case("C1", "all_reduce", 64 << 20, True, ((WINDOWS, 8.0),), 0.8), 2, times | limits)
    assert [line.met for line in lines] == [True, None, None]
    assert [line.limit for line in lines] == ["least work", "least copies", "least copies"]
    assert [line.reached for line in lines] == pytest.approx([0.875, 0.95, 19 / 21])


def test_the_picture_of_steps_has_ddp_once_and_each_strategy(tmp_path: Path) -> None:
    parts = {FORWARD: 10e6, BACKWARD: 20e6, EXCHANGE: 15e6, UPDATE: 5e6, REST: 10e6}
    lines = [
        compare(Aim("C6", "MLP"), (ours, [30e6]), ("DDP 4 MiB", [60e6])).with_notes({ours: parts, "DDP 4 MiB": parts})
        for ours in ("ddp", "zero1")
    ]
    assert [label for _, label, _, _ in rows(lines)] == ["DDP 4 MiB", "samebits, ddp", "samebits, zero1"]
    draw_steps(lines, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_every_part_says_what_it_will_measure_of_the_chosen_models() -> None:
    for part in PARTS.values():
        planned = part.plan(Amount(6))
        assert planned
        assert len({measurement.label for measurement in planned}) == len(planned)
    labels = [one.label for one in PARTS["steps"].plan(Amount(1, parse(["steps", "--models", "tensors,mlp"]).models))]
    assert ["MLP" in label for label in labels] == [True, True, False, False]


def test_what_cannot_be_measured_is_said_in_one_sentence() -> None:
    for parts, picture, cores, no_compiled, said in (
        (["speed"], None, 2, "", "no part speed"),
        (["transport"], None, 1, "", "2 cores"),
        (["transport", "launch"], None, 2, "no g++", "no g++"),
        (["ddp"], Path("x.png"), 2, "", "A picture shows steps"),
        (["steps"], Path("x.bmp"), 2, "", "must end with"),
        (["steps"], Path("nowhere/x.png"), 2, "", "no folder"),
        (["launch"], None, 2, "no g++", ""),
    ):
        problem = objection(parts, picture, cores, no_compiled)
        assert said in problem
        assert bool(said) == bool(problem)


@pytest.mark.parametrize("words", [["speed"], ["--rounds", "3"], ["steps", "--models", "mlp,resnet"]])
def test_a_mistake_on_the_command_line_is_one_sentence_and_code_2(words, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_loses_nothing_that_was_measured(monkeypatch, capsys) -> None:
    def interrupted() -> list[Line]:
        raise KeyboardInterrupt

    plan = [Measurement("a", lambda: [compare(Aim("C1", "whole"), ("a", [1.0]))]), Measurement("b", interrupted)]
    monkeypatch.setitem(PARTS, "steps", Part("steps", lambda _: plan))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "steps"])
    monkeypatch.setattr("benchmarks.__main__.signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "whole" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.compiles
@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_measured(part: str) -> None:
    models = ("tensors",) if PARTS[part].has_models else ()
    assert all(line.amount > 0 for line in PARTS[part].plan(Amount(1, models))[0].measure())


@pytest.mark.thorough
@pytest.mark.ranks
def test_a_loss_is_measured_with_the_parts_of_its_time() -> None:
    [line] = measure_loss("small", 1)
    parts = line.notes["parts"]
    begun, prepared = parts["until_the_script_begins"], parts["until_it_has_prepared"]
    assert 0 < begun < begun + prepared < parts["whole"]
