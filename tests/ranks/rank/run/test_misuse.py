"""What cannot be right raises one sentence with the fix, on every rank, before anybody waits."""

import pytest

import samebits
from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.mistakes import (
    MISTAKES,
    few_lanes,
    number_as_loss,
    rate_of_rank,
    steps_on_one_rank,
    swapped_results,
    unprepared_loader,
)
from tests.scripts.refused_preparations import REFUSED
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SENTENCES = MISTAKES | REFUSED


@promise(
    "never-a-silent-wrong-gradient",
    "59 mistakes (a bare `loss.backward()`, `optimizer.step()` inside lanes, a loop left early, ranks "
    "that disagree, …) raise one sentence with the fix on every rank",
)
@promise(
    "samples",
    "Ranks that would train on different data, or in a different order, are stopped before the first step",
)
@pytest.mark.parametrize(
    "mistake",
    [pytest.param(one, id=one.__name__, marks=[pytest.mark.thorough] * (one in REFUSED)) for one in SENTENCES],
)
def test_a_mistake_is_one_sentence(mistake):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(2, timeout_s=30))
    assert caught.value.error_type == "UsageError"
    assert SENTENCES[mistake] in caught.value.message


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (number_as_loss, "got float. Pass the loss itself: item() and float() leave a number"),
        (swapped_results, "but got a SGD. run.prepare returns things in the order in which it gets them"),
        (unprepared_loader, "but got a DataLoader. Write `loader = run.prepare(loader)`"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_help_is_about_what_was_passed(mistake, says):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(1, timeout_s=30))
    assert says in caught.value.message


@pytest.mark.parametrize("mistake", [steps_on_one_rank, rate_of_rank], ids=lambda mistake: mistake.__name__)
def test_models_that_a_script_drives_apart_are_one_sentence(mistake):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(2, timeout_s=30, form=Form("ddp")))
    assert caught.value.error_type == "RanksDiffer"
    assert "Rank 0 and rank 1 no longer hold the same bits in 'Linear.weight', so one of" in caught.value.message
    assert "or the script does something on some ranks only" in caught.value.message


def test_an_update_on_some_ranks_only_is_told_at_once_where_ranks_divide_it():
    with pytest.raises(RankFailed, match="The ranks are not at the same place"):
        run_ranks(steps_on_one_rank, Started(2, timeout_s=30, form=Form("zero1")))


def test_more_ranks_than_lanes_is_refused():
    with pytest.raises(RankFailed, match="Start with -n 1, or set lanes=2"):
        run_ranks(few_lanes, Started(2, timeout_s=30))


@pytest.mark.parametrize("options", [{"lanes": 0}, {"threads": 0}, {"lanes": 1.5}, {"seed": "a"}, {"device": "tpu"}])
def test_wrong_options_are_refused_alone_too(options):
    with pytest.raises(UsageError):
        samebits.init(**options)


@promise("never-a-silent-wrong-gradient", "A launched script never trains alone in silence")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK=1 is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set but RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 does not fit WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 tasks, and this one"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun started 2 tasks"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun started 2 tasks"),
    ],
)
def test_a_launched_script_never_trains_alone_in_silence(variables, message, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        samebits.init()
