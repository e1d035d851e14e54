"""Views taken before `run.prepare` still show the values afterwards, under every strategy, or the script is told."""

import pytest

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import views

pytestmark = pytest.mark.ranks

SCENARIOS = [
    views.polyak_pairs,
    views.foreach_lerp,
    views.numpy_views,
    views.cut_from_one_flat,
    views.a_weights_data_as_an_attribute,
    views.buffers_by_views,
    views.shared_with_another_process,
    views.from_numpy,
    views.views_taken_while_training,
]


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_views_of_parameters_and_buffers_still_show_them(scenario):
    [alone] = run_ranks(scenario, Started(1))
    assert alone["shows"]
    for started in (Started(2), Started(2, form=Form("zero1"))):
        for result in run_ranks(scenario, started):
            assert result == alone, started.form


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_without_views_all_parameters_lie_together(strategy):
    assert run_ranks(views.num_that_stay, Started(2, form=Form(strategy))) == [0, 0]


@pytest.mark.parametrize("strategy", ["hogwild", "model_parallel"])
@pytest.mark.thorough
def test_where_memory_has_to_move_it_is_one_sentence(strategy):
    with pytest.raises(RankFailed, match="something else uses too") as failed:
        run_ranks(views.polyak_pairs, Started(2, form=Form(strategy)))
    assert failed.value.error_type == "UsageError"


def test_a_result_that_nobody_uses_does_not_keep_a_model_from_being_cut():
    [alone] = run_ranks(views.unused_result, Started(1))
    assert run_ranks(views.unused_result, Started(2, form=Form("model_parallel"))) == [alone] * 2
