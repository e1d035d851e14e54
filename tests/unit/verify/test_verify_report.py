"""How the result looks on 80 columns, without styles, and as JSON."""

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from samebits.verify.comparison import END, Cell, Difference, Row, Side
from samebits.verify.deviation import Deviation
from samebits.verify.evidence import ItemAtStep, Kind
from samebits.verify.plain import Agreement, Plain
from samebits.verify.report import show
from samebits.verify.result import Against, Explained, Failed, Result, Run

AGREES = Plain(Agreement.AGREES, 4, 2e-7, 1e-4, (0.25,) * 4, (), batch_norms=2)


def result(**known: object) -> Result:
    found = Result("train.py", (1, 2, 4), 1, "cpu", 20, lanes=4, plain=AGREES)
    found.runs = [Run(ranks, 20, 1.0) for ranks in found.ranks]
    same = Cell("0123abcd", 10, None)
    found.rows = [
        Row(Kind.LOSS, "losses", 1, (Cell("0123abcd", 1, None),) * 3),
        Row(Kind.PARAMETER, "parameters (10)", 10, (same, same, same)),
        Row(END, "at the end (12)", 12, (same, same, same)),
    ]
    for name, value in known.items():
        setattr(found, name, value)
    return found


def differing() -> Result:
    place = ItemAtStep(3, "parameter fc.weight")
    difference = Difference(Side(0, 0), Side(1, 0), place, "a" * 32, "b" * 32, (place, ItemAtStep(3, "optimizer x")))
    seen = Deviation(7, 48, 0.342, 0.5, 2.0)
    row = Row(
        Kind.PARAMETER, "parameters (10)", 10, (Cell("0123abcd", 10, None), Cell("0", 10, 3), Cell("0", 10, 12, 1))
    )
    explained = Explained(difference, "1 rank", "2 ranks", seen, None, "it is so.", repeatable=True)
    return result(rows=[row], difference=explained)


def text(found: Result, width: int = 80, *, is_detailed: bool = True) -> str:
    written = io.StringIO()
    show(found, Console(file=written, width=width, highlight=False), is_detailed=is_detailed, seconds=41.2)
    return written.getvalue()


def test_the_verdict_comes_first_and_the_table_only_where_something_is_wrong() -> None:
    said = text(result(), is_detailed=False)
    assert said.startswith("SAME BITS on 1, 2 and 4 ranks: 20 steps, 11 items in each")
    assert "0123abcd" not in said
    assert said.rstrip().endswith(" more: -v)")
    assert max(map(len, said.splitlines())) <= 80
    assert "differs at step 3" in text(differing(), is_detailed=False)
    assert "shows nothing" in text(result(plain=Plain(Agreement.SAME_LANES, 4)), is_detailed=False)


def test_equal_runs_say_what_is_the_same_and_what_is_not_proved() -> None:
    said = text(result())
    assert result().exit_code == 0
    assert "parameters (10)" in said
    assert "0123abcd same" in said
    assert (
        "SAME BITS on 1, 2 and 4 ranks: 20 steps, 11 items in each, 12 at the end; 4 lanes, 1 thread each 41 s"
        in " ".join(said.split())
    )
    assert "not covered: steps after step 20;" in said
    assert "2 BatchNorm layers" in said


def test_the_table_fits_80_columns_and_has_no_escapes_outside_of_a_terminal() -> None:
    for found in (result(), differing()):
        said = text(found)
        assert max(map(len, said.splitlines())) <= 80
        assert "\x1b" not in said


def test_a_difference_is_told_with_its_step_item_numbers_and_cause() -> None:
    said = text(differing())
    assert differing().exit_code == 1
    assert "differs at step 3" in said
    assert "rank 1 differs" in said
    assert "First difference: step 3, parameter fc.weight (layer fc): 1 rank against 2 ranks." in " ".join(said.split())
    assert (
        "7 of 48 elements differ; largest difference 0.342 (0.5 of the largest value); all by a factor of 2"
        in " ".join(said.split())
    )
    assert "1 other item of this step differs too" in said
    assert "Usual cause: it is so." in said
    assert said.startswith("DIFFERENT BITS   41 s\n")


def test_a_run_that_failed_is_told_with_its_text_and_no_table() -> None:
    found = result(failed=Failed("2 ranks", "error: no such thing", 1), runs=[], kept="The runs are kept in /somewhere")
    said = text(found)
    assert found.exit_code == 1
    assert said.splitlines() == ["2 ranks failed:", "error: no such thing", "The runs are kept in /somewhere"]


def test_the_result_is_json_also_with_numbers_that_are_not_finite() -> None:
    found = differing()
    assert found.difference is not None
    infinite = Deviation(1, 1, math.nan, math.inf, None)
    found.difference = Explained(
        found.difference.difference, "1 rank", "2 ranks", infinite, None, "so.", repeatable=True
    )
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["difference"]["deviation"]["max_absolute"] is None
    assert told["difference"]["item"] == "parameter fc.weight"
    assert told["plain"]["agreement"] == "agrees"
    assert told["proved"] is False


def test_an_accepted_row_plain_says_so_and_does_not_fail() -> None:
    for agreement in (Agreement.COUPLED, Agreement.SAME_LANES, Agreement.SUM):
        plain = Plain(agreement, 4, 0.58, 1e-4)
        assert result(plain=plain).exit_code == 1
        found = result(plain=plain, accepted=("plain",))
        assert found.exit_code == 0
        assert "accepted, 0.58" in text(found)
        assert "plain, accepted: " in text(found)
        assert found.as_json()["accepted"] == ["plain"]
    assert "agrees, 2e-07" in text(result(accepted=("plain",)))
    assert result(accepted=("plain",), failed=Failed("2 ranks", "no", 1)).exit_code == 1
    nothing = Plain(Agreement.SAME_LANES, 4)
    assert "shows nothing" in text(result(plain=nothing))
    assert "accepted," not in text(result(plain=nothing, accepted=("plain",))).partition("\n\n")[0]


def test_the_end_of_the_script_is_told_when_it_was_reached_and_when_not() -> None:
    assert "which it did not reach" not in text(result())
    missed = Run(2, 20, 1.0, reached_end=False, why_not="AssertionError: 20 of 460 steps at train.py:70")
    found = result(runs=[*result().runs[:1], missed, *result().runs[2:]])
    assert found.exit_code == 0
    said = " ".join(text(found).split())
    assert (
        "not covered: steps after step 20; the end of the script, which it did not reach when its loops ended" in said
    )
    assert "AssertionError: 20 of 460 steps at train.py:70" in said
    assert found.as_json()["reached_end"] is False


def test_a_file_is_a_column_and_its_conditions_are_said() -> None:
    against = Against("bits.json", ("torch 2.12.0 there, 2.13.0 here",), 20)
    same = result(against=against)
    same.rows = [Row(row.key, row.title, row.num_items, (*row.cells, row.cells[0])) for row in same.rows]
    assert same.exit_code == 0
    said = text(same)
    assert max(map(len, said.splitlines())) <= 80
    assert "saved" in said
    assert "The same bits as in bits.json, over 20 steps." in said
    assert "Conditions: torch 2.12.0 there, 2.13.0 here." in said
    other = differing()
    assert other.difference is not None
    other.against = Against("bits.json", (), 20, same=False)
    other.rows = [Row(Kind.LOSS, "losses", 1, (Cell("0", 1, None),) * 3 + (Cell("1", 1, 2),))]
    other.difference = Explained(
        other.difference.difference, "1 rank", "bits.json", None, None, "so.", repeatable=True, norms=(1.0, 1.25)
    )
    said = text(other)
    assert other.exit_code == 1
    assert said.startswith("DIFFERENT BITS")
    assert "The bits differ from bits.json; they are the same on all ranks here." in said
    assert "norm 1 here, 1.25 there (relative difference 0.2)" in said
    assert other.as_json()["against"]["same"] is False


def test_a_name_from_a_script_forges_no_line() -> None:
    hidden = ItemAtStep(3, "parameter a\nSAME BITS on 1, 2, 4 ranks")
    found = differing()
    explained = found.difference
    assert explained is not None
    difference = replace(explained.difference, place=hidden)
    found.difference = replace(explained, difference=difference)
    assert not any(line.startswith("SAME BITS") for line in text(found).splitlines())
    assert "a\\nSAME BITS" in text(found)
