"""What `samebits bench` measures, and how its results are shown and explained; no process is started."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from samebits.bench.measures import PARTS, Interval, Memory, Round, Stage, StepTime
from samebits.bench.picture import draw, kind_of
from samebits.bench.plan import Amount, Bench, Configuration, configurations, parse_strategies
from samebits.bench.report import show
from samebits.bench.results import Measured, Results, is_faster
from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program

MEMORY = Memory((300 << 20,), (100 << 20,), (150 << 20,), (200 << 20,), ())
STAGES = (Stage(0, ("a",), 1.0, 2.0, 4.0, 0.0), Stage(1, ("b",), 2.0, 4.0, 1.0, 0.0))


def bench(*strategies: str, ranks: tuple[int, ...] = (1, 2), lanes: int | None = None) -> Bench:
    program = Program(Path("train.py"), None, (), threads=1, device="cpu")
    return Bench(program, parse_strategies(strategies), ranks, lanes, Amount(10, 5), cores=2)


def measured(
    strategy: str, step_ms: float, *, ranks: int = 1, lanes: int = 4, threads: int = 1, bits: str = "a", **more: object
) -> Measured:
    configuration = Configuration(strategy, ranks, lanes, threads, all_cores=bool(more.get("all_cores")))
    shares = {"data": 0.1, "compute": 0.5, "exchange": 0.3, "update": 0.1, "script": 0.0}
    steps = tuple(
        StepTime(number, 64, ms / 1e3, {part: ms / 1e3 * shares[part] for part in PARTS})
        for number, ms in enumerate((step_ms * 0.9, step_ms, step_ms * 1.1))
    )
    piece = Interval("compute", "lane 0", 0.0, step_ms / 1e3)
    one = Round(steps, MEMORY, bits, lanes, threads, ((piece,),) * ranks, more.get("stages", ()))  # type: ignore[arg-type]
    return Measured(configuration, [one, one], str(more.get("failed", "")))


def results(*found: Measured) -> Results:
    return Results("train.py", "cpu", 2, Amount(10, 5), [measured("single", 100.0), *found])


def text(found: Results, width: int = 80) -> str:
    written = io.StringIO()
    show(found, Console(file=written, width=width, highlight=False))
    return written.getvalue()


def words(found: Results) -> str:
    return " ".join(text(found).split())


def test_one_rank_and_one_process_with_all_cores_are_always_measured() -> None:
    found = configurations(bench(), script_lanes=4, threads=1)
    assert [(one.title, one.lanes, one.threads) for one in found] == [
        ("single", 4, 1),
        ("1 rank, all cores", 4, 2),
    ]


def test_without_lanes_in_the_script_the_most_ranks_decide_and_a_pipeline_has_its_own() -> None:
    found = configurations(bench("ddp", "pipeline", "dp", ranks=(1, 2, 4)), script_lanes=None, threads=1)
    assert [(one.title, one.lanes) for one in found] == [
        ("single", 4),
        ("ddp on 2", 4),
        ("ddp on 4", 4),
        ("pipeline on 2", 8),
        ("pipeline on 4", 16),
        ("dp on 2", 1),
        ("dp on 4", 1),
        ("single", 8),
        ("single", 16),
        ("single", 1),
        ("1 rank, all cores", 1),
    ]
    assert len({one.key for one in found}) == len(found)


def test_a_process_with_all_cores_is_left_out_where_it_is_the_first_configuration() -> None:
    found = configurations(bench(ranks=(1,)), script_lanes=None, threads=2)
    assert [(one.title, one.lanes, one.threads) for one in found] == [("single", 1, 2)]


def test_lanes_and_ranks_that_cannot_be_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"--lanes 1 is less than 2 ranks. Bench with --lanes 2"):
        bench("ddp", lanes=1)
    with pytest.raises(UsageError, match=r"at least as many lanes"):
        bench("pipeline", lanes=1)
    with pytest.raises(UsageError, match=r"pipeline needs several ranks, but --ranks is 1"):
        bench("ddp", "pipeline", ranks=(1,))


def test_the_tables_fit_80_columns_and_have_no_escapes_outside_of_a_terminal() -> None:
    found = results(
        measured("model_parallel", 123456.0, ranks=2),
        measured("hogwild", 0.5, ranks=4),
        measured("single", 60.0, threads=2, all_cores=True),
        measured("dp", 90.0, ranks=2, bits="b"),
    )
    said = text(found)
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said
    assert "model_parallel on 2" in said
    assert "  not by design" in said
    assert "other threads" in said
    assert "dp gives the bits that torch's DataParallel gives" in words(found)
    assert "hogwild is not exact by design" in words(found)
    assert ".." not in said


def test_bits_are_compared_with_one_rank_of_the_same_lanes() -> None:
    good, bad, alone = (
        measured("ddp", 60.0, ranks=2),
        measured("ddp", 60.0, ranks=4, bits="b"),
        measured("ddp", 9.0, lanes=8),
    )
    found = results(good, bad, alone)
    assert [found.exactness(one) for one in found.measured] == ["reference", "same bits", "differs", "no reference"]
    assert "ddp on 4 differs from one rank with the same lanes: samebits verify shows where." in words(found)


def test_it_says_when_one_process_with_all_cores_is_faster() -> None:
    found = results(measured("ddp", 80.0, ranks=2), measured("single", 50.0, threads=2, all_cores=True))
    assert "One process with all 2 cores is 60% faster than ddp on 2" in words(found)
    found = results(measured("ddp", 80.0, ranks=2), measured("single", 200.0, threads=2, all_cores=True))
    assert "One process" not in words(found)
    assert "Fastest: ddp on 2, 1.25 times as fast as one rank." in words(found)


def test_slow_ranks_are_explained_by_their_exchange_or_by_too_few_cores() -> None:
    assert "ddp on 2 is slower than one rank: 30% of a step is the exchange of gradients, 60.0 ms" in words(
        results(measured("ddp", 200.0, ranks=2))
    )
    assert "4 threads share 2 cores. Use at most 2 ranks here" in words(results(measured("ddp", 200.0, ranks=4)))


def test_a_slow_pipeline_is_explained_by_its_stages_and_by_the_cut() -> None:
    pipeline = measured("pipeline", 110.0, ranks=2, lanes=8, stages=STAGES)
    said = words(results(pipeline, measured("single", 130.0, lanes=8)))
    assert "pipeline on 2 is slower than one rank (0.91 times its speed); 2 equal stages with 8 micro-batches" in said
    assert "could reach 1.78 times" in said
    assert "unequal stages (rank 1 computes 2.00 times as long as the fastest)" in said
    assert "Cut into 8 micro-batches, the same step takes one rank 30% longer" in said


def test_a_model_in_parts_is_told_that_one_rank_works_at_a_time() -> None:
    assert "one of its 2 ranks works at a time" in words(results(measured("model_parallel", 105.0, ranks=2)))


def test_a_configuration_that_failed_is_a_row_with_its_reason() -> None:
    broken = Measured(Configuration("ddp", 2, 4, 1), [], "rank 1: ValueError: too warm")
    found = results(broken)
    assert "ddp on 2 failed: rank 1: ValueError: too warm" in words(found)
    assert found.exit_code == 1
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["configurations"][1]["failed"] == broken.failed


def test_what_was_measured_before_a_signal_is_shown() -> None:
    found = results(Measured(Configuration("ddp", 2, 4, 1)))
    found.interrupted_by = 130
    assert "2 of 5 rounds" in words(found)
    assert found.exit_code == 130
    assert Results("train.py", "cpu", 2, Amount(10, 5), interrupted_by=130).exit_code == 130


def test_a_picture_is_drawn_of_bars_and_of_one_step(tmp_path: Path) -> None:
    found = results(measured("ddp", 60.0, ranks=2), measured("pipeline", 70.0, ranks=2, stages=STAGES))
    draw(found, tmp_path / "speed.svg")
    drawn = (tmp_path / "speed.svg").read_text()
    assert drawn.count("<!-- ") > 20
    for said in ("same bits", "1.67x", "samples/s", "rank 1", "ms since the step began"):
        assert f"<!-- {said}" in drawn or said in drawn
    assert kind_of(Interval("compute", "backward 3", 0, 1)) == "backward"
    assert kind_of(Interval("exchange", "gradients", 0, 1)) == "exchange"


def rounds(strategy: str, *step_ms: float, ranks: int = 2, **more: object) -> Measured:
    """A configuration whose rounds differ."""
    found = [measured(strategy, ms, ranks=ranks, **more) for ms in step_ms]  # type: ignore[arg-type]
    found[0].rounds = [one.rounds[0] for one in found]
    return found[0]


def wandering(*found: Measured) -> Results:
    """One rank took 100 ms in each of five rounds."""
    return Results("train.py", "cpu", 4, Amount(10, 5), [rounds("single", *[100.0] * 5, ranks=1), *found])


def test_what_is_within_the_noise_gets_no_reason_and_no_praise() -> None:
    slightly_slower = rounds("ddp", 96.0, 103.0, 104.0, 98.0, 105.0)
    said = words(wandering(slightly_slower))
    assert "is slower" not in said
    assert "exchange of gradients" not in said
    slightly_faster = rounds("ddp", 90.0, 103.0, 94.0, 102.0, 96.0)
    said = words(wandering(slightly_faster))
    assert "Fastest" not in said
    assert "Nothing is clearly faster than one rank: ddp on 2 took 0.96 times as long" in said
    assert "Nothing is faster than one rank" in words(wandering(slightly_slower))
    clear = rounds("ddp", 110.0, 112.0, 111.0, 109.0, 112.0)
    assert "ddp on 2 is slower than one rank: 30% of a step is the exchange" in words(wandering(clear))


def test_configurations_that_cannot_be_told_from_the_fastest_are_named_beside_it() -> None:
    first = rounds("ddp", 50.0, 52.0, 51.0, 50.0, 49.0)
    second = rounds("zero1", 51.0, 50.0, 51.5, 51.0, 49.5)
    third = rounds("pipeline", 80.0, 81.0, 80.0, 82.0, 80.0)
    said = words(wandering(first, second, third))
    assert "Fastest: ddp on 2, 2.00 times as fast as one rank; not clearly slower: zero1 on 2." in said
    equal = rounds("single", 50.0, 51.0, 50.5, 50.0, 49.5, ranks=1, threads=4, all_cores=True)
    assert "One process with all" not in words(wandering(first, equal))


def test_a_single_round_is_believed_only_beyond_what_its_steps_wander() -> None:
    base, near, far = (rounds("single", 100.0, ranks=1), rounds("ddp", 96.0), rounds("ddp", 70.0, ranks=4))
    assert not is_faster(near, base)
    assert is_faster(far, base)
    assert not is_faster(base, far)


def test_hogwild_is_blamed_for_no_exchange() -> None:
    said = words(wandering(rounds("hogwild", 150.0, 151.0, 152.0, 150.0, 149.0)))
    assert "hogwild on 2 is slower than one rank: it exchanges no gradients" in said
    assert "of a step is the exchange" not in said
