"""Where nobody names a strategy, updates are divided as under `zero1`, and a script may do all that `ddp` allows."""

import pytest

from lockstep.layout.mesh import Form
from lockstep.testing.ranks import Started, run_ranks
from tests.scripts import disturbed_updates, looking_scripts

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "script", [*looking_scripts.SCRIPTS, *disturbed_updates.SCRIPTS], ids=lambda script: script.__name__
)
def test_a_script_that_looks_at_the_state_has_the_bits_of_one_rank(script, ranks):
    [alone] = run_ranks(script, Started(1))
    told = run_ranks(script, Started(ranks))
    if script is looking_scripts.an_unknown_optimizer_besides:
        assert {name for _, name in told} == {"ddp"}
        told = [(bits, "single") for bits, _ in told]
    assert told == [alone] * ranks


def test_updates_are_divided_until_the_script_looks(tmp_path):
    for told in run_ranks(looking_scripts.chosen, Started(2), str(tmp_path)):
        assert told == [("zero1", True)] * 3 + [("zero1", True), ("ddp", True)]
    assert run_ranks(looking_scripts.saved_and_loaded, Started(2), str(tmp_path))[0][0] == ["zero1"] * 4


@pytest.mark.parametrize("form", [Form("ddp"), Form(mesh="ddp=2")], ids=["strategy", "mesh"])
def test_a_named_ddp_divides_nothing(form, tmp_path):
    for told in run_ranks(looking_scripts.chosen, Started(2, form=form), str(tmp_path)):
        assert {name for name, _ in told} == {"ddp"}
