"""What is trained besides the model: prepared, it has the same bits everywhere; else it is refused, on one rank too."""

import gc

import pytest

import samebits
from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import unprepared
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    "scenario",
    [
        unprepared.center_loss,
        unprepared.trained_copy,
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (unprepared.temperature, unprepared.several)),
    ],
)
def test_a_prepared_parameter_without_a_module_has_the_same_bits(scenario):
    [alone] = run_ranks(scenario, Started(1), True)
    for started in (Started(2), Started(3), Started(2, form=Form("zero1"))):
        for result in run_ranks(scenario, started, True):
            assert result == alone, started


def test_an_optimizer_of_a_prepared_model_needs_no_preparation():
    assert len(run_ranks(unprepared.unprepared_optimizer, Started(1))[0]["losses"]) == 5


def test_an_optimizer_that_lives_in_a_lane_or_outside_of_lanes_is_nobodys_concern():
    [alone] = run_ranks(unprepared.inner_loop, Started(1))
    for result in run_ranks(unprepared.inner_loop, Started(2)):
        assert result == alone


REFUSED = {
    unprepared.center_loss: (False,),
    unprepared.temperature: (False,),
    unprepared.trained_copy: (False,),
    unprepared.bare_backward_of_another: (),
    unprepared.gradient_set_by_hand: (),
    unprepared.stepped_in_the_lane: (),
    unprepared.made_before_init: (),
}


@promise(
    "never-a-silent-wrong-gradient",
    "An optimizer that steps a tensor which got a gradient inside lanes and belongs to nothing prepared "
    "raises; once prepared it has the same bits",
    also=["test_a_prepared_parameter_without_a_module_has_the_same_bits"],
)
@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize(
    ("ranks", "lanes"), [(2, 4), *(pytest.param(1, lanes, marks=pytest.mark.thorough) for lanes in (1, 4))]
)
def test_a_tensor_that_nobody_prepared_is_not_stepped(scenario, ranks, lanes):
    with pytest.raises(RankFailed, match="was not passed to run") as failed:
        run_ranks(scenario, Started(ranks, lanes=lanes), *REFUSED[scenario], lanes)
    assert failed.value.error_type == "UsageError"


def test_training_on_a_share_of_the_samples_is_refused():
    with pytest.raises(RankFailed, match="on one rank's share of the samples"):
        run_ranks(unprepared.trained_on_a_share, Started(1))


@pytest.mark.parametrize("is_late", [False, True])
def test_an_optimizer_made_before_init_and_stepped_between_loops_is_refused_only_where_it_may_hold_gradients_of_lanes(
    is_late,
):
    if not is_late:
        run_ranks(unprepared.stepped_between_loops, Started(2))
        return
    with pytest.raises(RankFailed, match=r"make SGD after samebits\.init"):
        run_ranks(unprepared.stepped_between_loops, Started(2), is_late)


def test_init_does_not_walk_the_heap(monkeypatch):
    def walk(*_generations):
        raise AssertionError("a heap of millions of objects would take seconds")

    monkeypatch.setattr(gc, "get_objects", walk)
    samebits.init()
    samebits.finish()
