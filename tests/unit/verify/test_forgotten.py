"""What a script forgot is named from what it held before the stop and when it went on. Pure."""

import pytest

from samebits.verify.evidence import ItemAtStep
from samebits.verify.forgotten import GRADIENTS, HIDDEN, NOT_BROUGHT_BACK, Forgotten, Variable, cause, forgotten


def at(*items):
    return {ItemAtStep(7, name): value for name, value in items}


def test_an_object_is_named_by_its_path_with_its_class():
    base = [("own trainer.average", "AveragedModel"), ("own trainer", "Trainer"), ("own weights", "dict")]
    before = at(*base, ("own trainer.average.n", "7"), ("own weights.a", "1"))
    after = at(*base, ("own trainer.average.n", "0"), ("own weights.a", "2"))
    found = forgotten(before, {}, after)
    assert found.objects == (("trainer.average", "AveragedModel"), ("weights", "dict"))
    assert "Add run.track(average=trainer.average)" in found.advice()
    assert "states do not hold weights. Keep it in run.state: run.state.weights." in found.advice()


@pytest.mark.parametrize(
    ("before", "stopped", "after", "told"),
    [
        ((0.5).hex(), (0.5).hex(), (0.0).hex(), ("0.5", "0.0")),
        ("7 items, ab", "7 items, ab", "0 items, cd", ("7 items", "0 items")),
        ("7 items, ab", "7 items, ab", "7 items, cd", ("7 items, ab", "7 items, cd")),
        ("'a'", "'a'", "None", ("'a'", "None")),
        ("1", "2", "3", None),
        ("1", None, "3", None),
        ("1", "1", "1", None),
        ("1", "1", None, None),
    ],
)
def test_a_variable_counts_where_it_is_repeatable_and_was_lost(before, stopped, after, told):
    held = [at(("variable best", value)) if value is not None else {} for value in (before, stopped, after)]
    assert forgotten(*held).variables == ((Variable("best", *told),) if told else ())


def test_without_a_name_the_place_of_the_difference_says_what_to_look_for():
    assert cause(Forgotten(), ItemAtStep(7, "resumed optimizer lr")) == NOT_BROUGHT_BACK
    assert cause(Forgotten(), ItemAtStep(8, "gradient fc.weight")) == GRADIENTS
    assert cause(Forgotten(), ItemAtStep(8, "loss")) == HIDDEN
    assert (
        cause(Forgotten(named=("no state holds own.", "nor that.")), ItemAtStep(8, "loss"))
        == "no state holds own. nor that."
    )
    assert "run.state.best" in cause(Forgotten(variables=(Variable("best", "1", "0"),)), ItemAtStep(8, "loss"))
