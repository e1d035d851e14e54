"""What the examples, the recipes, the scenarios and saved states come to is what it was, and old states still load."""

import shutil
from pathlib import Path

import pytest

from samebits.testing.ranks import Started, run_ranks
from tests.golden.cases import ALONE, CASES, Case, Refused, Way, of_run, of_scenario
from tests.golden.records import differences, record_file, recorded
from tests.golden.saving import resumed
from tests.scripts.scenarios import batch_norm_and_dropout
from tests.support.launching import start
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.every_row]
HERE = Path(__file__).parent
OLD_STATES = HERE / "old_states"
"""Saved on 2 ranks of zero1 by version 0.1.0 of November 2026: by the script, and by the command inside an epoch."""

NEW = {
    f"recipe {name}"
    for name in ("folds", "image_pool", "replay_buffer", "samples_between", "weight_ema", "whole_graph")
}
TO_BE_WRITTEN = {
    "amd-epyc-26-2-avx512-torch-2.13.0-cpu-python-3.11.7": {"states"} | NEW,
    "intel-xeon-processor-6-207-avx512-torch-2.13.0-cpu-python-3.11.7": NEW,
}
"""Cases that are new, or whose manifests changed and whose bits stayed, while such a machine was not at hand."""


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Under `zero1` the kinds of scripts of the first table have the bits of one rank too, over Gloo, and "
    "under mixed precision",
    also=[
        "test_ranks_that_share_no_memory_hand_the_parameters_around",
        "test_mixed_precision_has_the_bits_of_one_rank",
    ],
)
@promise(
    "shares-of-an-update-stages-of-a-model",
    "In stages the kinds of scripts of the first table have the bits of one rank or are refused in one "
    "sentence, as have checkpointed parts, LSTM, attention's fast path, autocast, lanes without backward",
    also=["test_corners_of_models_and_loops_have_the_bits_of_one_rank"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_has_changed(case):
    _, lines = differences(case, recorded().get(case.name))
    assert lines == []


def test_a_scenario_has_the_bits_of_the_record():
    case = Case("batch_norm_and_dropout", (ALONE, Way(2, "ddp")), lambda way: of_scenario(batch_norm_and_dropout, way))
    _, lines = differences(case, recorded().get(case.name))
    assert lines == []


def test_a_record_has_every_case():
    if not recorded():
        pytest.skip(f"no record of this kind of machine, {record_file().stem}")
    missing = {case.name for case in CASES} ^ set(recorded())
    assert missing <= TO_BE_WRITTEN.get(record_file().stem, set()), (
        "python -m tests.golden NAME writes those that are new"
    )


def test_an_old_state_still_loads_and_goes_on():
    held = {"counted": {"words": (1, 2)}}
    [alone] = run_ranks(resumed, Started(1), OLD_STATES / "state")
    assert alone["held"] == held
    assert alone["loaded"] == "b713243288558685"
    assert run_ranks(resumed, Started(2), OLD_STATES / "state") == [alone] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_goes_on_from_an_old_state_inside_an_epoch(tmp_path, ranks):
    shutil.copytree(OLD_STATES / "step-00000004", tmp_path / "samebits-runs/golden/states/step-00000004")
    options = ("-n", str(ranks), "--threads", "1", "--name", "golden", "--save-every", "2steps")
    finished = start(tmp_path, *options, str(HERE / "saving.py")).finish()
    assert finished.code == 0, finished.err
    assert "step 4" in finished.err
    [own] = [path.parent for path in (tmp_path / "samebits-runs/golden").glob("*/result.json")]
    if recorded():
        assert of_run(own)["bits"] == recorded()["states"]["digests"]["bits"]


def test_a_row_that_differs_from_the_record_or_from_the_first_row_is_named():
    def run(way):
        if way.is_staged:
            raise Refused
        return {"model": "b" if way.ranks == 2 else "a", "loss": "c"}

    case = Case("one", (ALONE, Way(2, "ddp"), Way(2, "pipeline")), run)
    found, lines = differences(case, None)
    assert (found["refused"], lines) == (["2 pipeline"], ["one on 2 ddp: model is b, not a"])
    _, lines = differences(case, {"digests": {"model": "b", "loss": "c", "bits": "d"}, "refused": []})
    assert lines == [
        "one on 1 ddp: model is a, not b",
        "one on 1 ddp: bits is missing",
        "one on 2 ddp: bits is missing",
        "one is refused on ['2 pipeline'], not on []",
    ]
