"""The benchmarks' arithmetic: medians, goals, limits; and what their command line refuses."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.__main__ import main, objection, parse  # noqa: E402
from benchmarks.catalogue import PARTS, Amount, Measurement, Part  # noqa: E402
from benchmarks.limits import cache_bytes, num_buffers, update_bytes  # noqa: E402
from benchmarks.parts.collectives import WINDOWS, Case, of_many_ranks, of_two_ranks, size_text  # noqa: E402
from benchmarks.parts.lost import measure_loss  # noqa: E402
from benchmarks.parts.memory import pss_bytes  # noqa: E402
from benchmarks.parts.sides import rotated, take_turns  # noqa: E402
from benchmarks.parts.steps import phases  # noqa: E402
from benchmarks.parts.transport import lines_of  # noqa: E402
from benchmarks.pictures import draw_steps, rows  # noqa: E402
from benchmarks.pinning import Pinned, cpus_for  # noqa: E402
from benchmarks.summary import (  # noqa: E402
    BACKWARD,
    EXCHANGE,
    FORWARD,
    REST,
    UPDATE,
    Aim,
    Kind,
    Line,
    Unit,
    amount_text,
    best,
    compare,
    compare_removed,
    spread,
    table,
)

AMOUNTS = st.floats(1.0, 1e9)


def test_a_comparison_is_the_ratio_of_the_medians_beside_its_goal_and_limit() -> None:
    line = compare(
        Aim("C1", "sum", 3.0, 0.8), ("ours", [2.0, 9.0, 2.0]), ("other", [6.0, 6.0, 50.0]), ("copy", [1.7] * 3)
    )
    assert (line.amount, line.other_amount, line.result, line.kind) == (2.0, 6.0, 3.0, Kind.TIMES)
    assert line.reached == pytest.approx(0.85)
    assert line.met


@pytest.mark.parametrize(("goal", "limit_goal", "met"), [(3.1, 0.0, False), (2.9, 0.9, False), (2.9, 0.4, True)])
def test_a_line_meets_its_goals_only_when_ratio_and_limit_are_reached(goal, limit_goal, met) -> None:
    assert compare(Aim("C1", "", goal, limit_goal), ("a", [2.0]), ("b", [6.0]), ("c", [1.0])).met is met


def test_a_line_without_a_goal_neither_meets_nor_misses_it() -> None:
    assert compare(Aim("C1", ""), ("a", [2.0]), ("b", [6.0])).met is None


@pytest.mark.parametrize(("amounts", "met"), [([0.9], True), ([1.1], False), ([-5.0], None)])
def test_an_amount_meets_its_goal_when_it_is_smaller_and_says_nothing_when_it_is_noise(amounts, met) -> None:
    assert compare(Aim("C11", "", 1.0), ("a", amounts)).met is met


@pytest.mark.parametrize(("ours", "removed"), [(60.0, 1.0), (100.0, 0.0), (70.0, 0.75), (110.0, -0.25)])
def test_what_is_removed_is_the_part_of_the_surplus_that_is_gone(ours, removed) -> None:
    line = compare_removed(Aim("C5", "", 0.85), ("ours", [ours]), ("Gloo", [100.0]), ("without", [60.0]))
    assert line.result == pytest.approx(removed)
    assert line.met is (removed >= 0.85)


def test_where_there_is_no_surplus_everything_or_nothing_is_removed() -> None:
    sides = ("Gloo", [50.0]), ("without", [60.0])
    assert [compare_removed(Aim("C5", ""), ("ours", [ours]), *sides).result for ours in (50.0, 51.0)] == [1.0, 0.0]


@given(st.lists(AMOUNTS, min_size=1, max_size=40))
def test_the_spread_of_one_side_lies_between_its_least_and_most(amounts) -> None:
    result, least, most = spread(lambda of: of["a"], {"a": amounts})
    assert min(amounts) <= least <= most <= max(amounts)
    assert min(amounts) <= result <= max(amounts)


@pytest.mark.parametrize("sides", [{"a": [1.0], "b": []}, {"a": [], "b": []}, {"a": [1.0, 2.0], "b": [1.0]}])
def test_sides_with_different_numbers_of_rounds_are_refused(sides) -> None:
    with pytest.raises(ValueError, match="rounds"):
        spread(lambda of: of["a"], sides)


def test_the_best_side_has_the_smallest_median_and_not_the_smallest_round() -> None:
    assert best({"DDP 1 MiB": [1.0, 9.0, 9.0], "DDP 4 MiB": [5.0, 5.0, 5.0]}) == "DDP 4 MiB"


@given(st.floats(-1e12, 1e12, allow_nan=False), st.sampled_from(Unit))
def test_every_amount_has_a_short_text(amount, unit) -> None:
    assert len(amount_text(amount, unit)) <= 16


def test_the_columns_of_the_table_stand_under_each_other() -> None:
    lines = [
        compare(
            Aim("C1", "all_reduce 25 MiB cold", 8.0, 0.8), ("windows", [1.6e6]), ("Gloo", [25e6]), ("copy", [1.5e6])
        ),
        compare(Aim("C11", "replace", 0.3e9), ("fork", [0.14e9])),
        compare_removed(Aim("C5", "DDP", 0.85), ("lockstep", [60e6]), ("Gloo", [90e6]), ("no exchange", [55e6])),
        compare(Aim("C14", "memory"), ("zero1", [1e9]), ("DDP", [2e9]), unit=Unit.BYTES),
    ]
    shown = table(lines).splitlines()
    for word in ("windows", "fork", "lockstep", "zero1"):
        assert any(line.find(word) == shown[0].index("lockstep") for line in shown[1:]), word
    assert "met" in shown[1]
    assert "954 MiB" in shown[4]


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.9899, "0.989x"), (0.9951, "0.995x"), (1.004, "1.00x"), (-0.5, "-0.50x")]
)
def test_a_ratio_that_misses_a_goal_does_not_read_like_the_goal(ratio: float, text: str) -> None:
    shown = table([compare(Aim("C8", "alone", 0.99), ("single", [100.0]), ("bare loop", [100.0 * ratio]))])
    assert f" {text} " in shown


def test_a_line_is_json_with_every_round() -> None:
    from dataclasses import asdict

    told = json.loads(json.dumps(asdict(compare(Aim("C1", "x"), ("a", [1, 2, 3]), ("b", [4, 5, 6])))))
    assert told["rounds"] == {"a": [1, 2, 3], "b": [4, 5, 6]}


def test_two_ranks_share_eight_times_the_parameters_in_an_update() -> None:
    assert update_bytes(100, 2) == 400


@given(st.integers(1, 1 << 27))
def test_cold_buffers_are_used_once_between_two_evictions_and_hot_ones_again(num_bytes) -> None:
    assert num_buffers(num_bytes, cold=False) == 1
    assert num_buffers(num_bytes, cold=True) * num_bytes <= max(20 * (64 << 10), 16 << 20, num_bytes)


@pytest.mark.parametrize(("text", "size"), [("32768K\n", 32 << 20), ("16M", 16 << 20), ("", 32 << 20), ("x", 32 << 20)])
def test_the_size_of_a_cache_is_read_as_the_kernel_writes_it(text, size) -> None:
    assert cache_bytes(text) == size


def test_proportional_memory_is_read_as_the_kernel_writes_it() -> None:
    assert pss_bytes("00400000-7ff [rollup]\nRss:  900 kB\nPss:      12 kB\nPss_Dirty: 3 kB\n") == 12 << 10


def test_the_parts_of_a_step_add_up_and_what_backward_takes_longer_is_exchange() -> None:
    told = {"ours": {FORWARD: 10.0, BACKWARD: 35.0, UPDATE: 5.0}, "no exchange": {BACKWARD: 20.0}}
    found = phases("ours", 60.0, told)
    assert found == {FORWARD: 10.0, BACKWARD: 20.0, EXCHANGE: 15.0, UPDATE: 5.0, REST: 10.0}


@given(st.lists(st.text(), min_size=1, max_size=6, unique=True), st.integers(0, 50))
def test_every_round_has_all_sides_and_begins_with_the_next_one(names, number) -> None:
    turns = rotated(names, number)
    assert sorted(turns) == sorted(names)
    assert turns[0] == names[number % len(names)]


def test_sides_take_turns_and_the_warm_up_does_not_count() -> None:
    seen: list[str] = []
    sides = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    times = take_turns(sides, 3, warm_up=1, barrier=lambda: seen.append("|"))
    assert seen == list("|a|b|b|a|a|b|b|a".replace("|", "|"))
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_the_rows_of_the_scoreboard_are_measured_with_their_sizes_and_goals() -> None:
    rows_of = {}
    for case in [*of_two_ranks(), *of_many_ranks()]:
        rows_of.setdefault(case.row, []).append(case)
    assert sorted(rows_of) == ["C1", "C2", "C3", "C4", "C9"]
    assert [case.num_bytes >> 20 for case in rows_of["C1"]] == [25, 64, 128]
    assert all(case.cold and case.limit_goal == 0.8 and dict(case.goals)[WINDOWS] == 8 for case in rows_of["C1"])
    assert {case.cold for case in rows_of["C2"]} == {True, False}
    assert all(case.num_bytes <= 4096 for case in rows_of["C3"])


@pytest.mark.parametrize(("size", "text"), [(4, "4 B"), (4096, "4 KiB"), (25 << 20, "25 MiB")])
def test_sizes_are_named_shortly(size, text) -> None:
    assert size_text(size) == text


def transport_lines():
    times = {"Gloo": [40e6], "windows": [4e6], "ordinary tensors": [20e6], "torch.distributed": [21e6]}
    limits = {"least work": [3.5e6], "least copies": [19e6]}
    case = Case("C1", "all_reduce", 64 << 20, True, ((WINDOWS, 8.0),), 0.8)
    return lines_of(case, 2, times | limits)


def test_each_way_has_a_limit_of_its_own_and_only_windows_have_a_goal() -> None:
    lines = transport_lines()
    assert [line.met for line in lines] == [True, None, None]
    assert [line.limit for line in lines] == ["least work", "least copies", "least copies"]
    assert [line.reached for line in lines] == pytest.approx([0.875, 0.95, 19 / 21])


def steps_lines():
    parts = {FORWARD: 10e6, BACKWARD: 20e6, EXCHANGE: 15e6, UPDATE: 5e6, REST: 10e6}
    lines = [
        compare(Aim("C6", "MLP"), (ours, [30e6]), ("DDP 4 MiB", [60e6])).with_notes({ours: parts, "DDP 4 MiB": parts})
        for ours in ("ddp", "zero1")
    ]
    return [*lines, compare(Aim("C8", "alone"), ("single", [1.0]), ("bare", [1.0]))]


def test_the_picture_of_steps_has_ddp_once_and_each_strategy() -> None:
    assert [label for _, label, _, _ in rows(steps_lines())] == ["DDP 4 MiB", "lockstep, ddp", "lockstep, zero1"]


def test_the_picture_can_be_drawn(tmp_path: Path) -> None:
    draw_steps(steps_lines(), tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_every_part_says_what_it_will_measure() -> None:
    for part in PARTS.values():
        planned = part.plan(Amount(6))
        assert planned
        assert len({measurement.label for measurement in planned}) == len(planned)


@pytest.mark.parametrize(
    ("parts", "picture", "cores", "no_compiled", "said"),
    [
        (["speed"], None, 2, "", "There is no part speed. Choose from transport"),
        (["transport"], None, 1, "", "need 2 cores, and this process may use 1"),
        (["transport", "launch"], None, 2, "no g++", "Without the compiled part transport cannot be measured: no g++."),
        (["ddp"], Path("x.png"), 2, "", "A picture shows steps. Name that part and no other."),
        (["steps", "transport"], Path("x.png"), 2, "", "A picture shows steps."),
        (["steps"], Path("x.bmp"), 2, "", "must end with .png, .svg, .pdf"),
        (["steps"], Path("nowhere/x.png"), 2, "", "there is no folder nowhere"),
        (["launch"], None, 2, "no g++", ""),
        (["steps"], Path("x.png"), 2, "", ""),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_sentence(parts, picture, cores, no_compiled, said) -> None:
    problem = objection(parts, picture, cores, no_compiled)
    assert said in problem
    assert bool(said) == bool(problem)
    assert "\n" not in problem


def test_a_picture_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.pictures.find_spec", lambda name: None if name == "matplotlib" else math)
    assert "matplotlib" in objection(["steps"], Path("x.png"), 2, "")


@pytest.mark.parametrize(
    "words",
    [
        ["speed"],
        ["--rounds", "3"],
        ["ddp", "--picture", "x.png"],
        ["--pinned", "two"],
        ["steps", "--models", "mlp,resnet"],
        ["steps", "--models", "mlp,"],
        ["steps", "memory", "--models", "mlp"],
        ["--models", "mlp"],
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence_and_code_2(words, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_loses_nothing_that_was_measured_and_keeps_only_whole_parts(monkeypatch, capsys) -> None:
    def interrupted() -> list[Line]:
        raise KeyboardInterrupt

    def plan(*measured: str) -> list[Measurement]:
        lines = [Measurement(what, lambda what=what: [compare(Aim("C1", what), ("a", [1.0]))]) for what in measured]
        return [*lines, *([Measurement("last", interrupted)] if "half" in measured else [])]

    for name in ("steps", "alone"):
        monkeypatch.setitem(PARTS, name, Part(name, lambda _, name=name: plan("whole" if name == "steps" else "half")))
    kept: dict[str, list[object]] = {}
    monkeypatch.setattr("benchmarks.__main__.keep", lambda parts, **_: kept.update(parts) or Path.cwd())
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--keep", "steps", "alone"])
    monkeypatch.setattr("benchmarks.__main__.signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    out = capsys.readouterr().out
    assert "whole" in out
    assert "half" in out
    assert list(kept) == ["steps"]


def test_chosen_models_are_measured_in_the_usual_order_and_no_others() -> None:
    amount = Amount(1, parse(["steps", "--models", "tensors,mlp"]).models)
    labels = [one.label for one in PARTS["steps"].plan(amount)]
    assert [label.partition(":")[0] for label in labels] == ["steps, ddp", "steps, zero1"] * 2
    assert ["MLP" in label for label in labels] == [True, True, False, False]
    assert len(PARTS["alone"].plan(amount)) == 2


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
    assert line.row == "C11"
    assert (
        0
        < parts["until_the_script_begins"]
        < parts["until_the_script_begins"] + parts["until_it_has_prepared"]
        < parts["whole"]
    )


def test_all_ranks_are_pinned_to_one_cpu_or_to_threads_of_one_core_where_it_has_them(monkeypatch) -> None:
    allowed = frozenset(os.sched_getaffinity(0))
    assert cpus_for(None) == Pinned()
    assert cpus_for("one-cpu").cpus == {min(allowed)}
    monkeypatch.setattr("benchmarks.pinning.siblings", lambda cpu: frozenset({cpu}))
    assert "Take --pinned one-cpu" in cpus_for("siblings").problem
    monkeypatch.setattr("benchmarks.pinning.siblings", lambda _: allowed)
    assert cpus_for("siblings").cpus == (allowed if len(allowed) > 1 else frozenset())
