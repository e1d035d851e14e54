"""A plan of faults is one line of text; what it does not say is one sentence."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.testing import faults
from samebits.testing.faults import KINDS, Fault, Plan
from samebits.testing.faults.acts import _ACTS, SCRIPTS_OWN
from samebits.testing.faults.plan import LASTS_S

NUMBERS = st.integers(0, 10**6)


@st.composite
def plans(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    of_sample = draw(st.booleans())
    return Fault(
        kind,
        rank=None if of_sample else draw(NUMBERS),
        step=None if of_sample else draw(NUMBERS),
        sample=draw(NUMBERS) if of_sample else None,
        seconds=draw(st.none() | st.floats(0, 1e6)) if kind in LASTS_S else None,
        path="/mnt/small" if kind == "disk-full" else "",
    )


@given(st.lists(plans(), max_size=4))
def test_a_plan_is_read_as_it_is_written(found):
    plan = Plan(tuple(found))
    assert Plan.parse(str(plan)) == plan


@given(st.lists(plans(), max_size=6), st.integers(0, 3), st.integers(0, 3))
def test_a_fault_comes_to_its_rank_at_its_step_only(found, rank, step):
    plan = Plan(tuple(found))
    expected = [(number, one) for number, one in enumerate(found) if one.rank == rank and one.step == step]
    assert plan.at(rank, step) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stopp rank=1 step=5", "There is no fault 'stopp'."),
        ("rank=1 step=5", "There is no fault 'rank=1'."),
        ("stop", "The fault 'stop' does not say where."),
        ("stop rank=1", "The fault 'stop rank=1' does not say where."),
        ("stop rank=1 step=5 sample=2", "The fault 'stop rank=1 step=5 sample=2' does not say where."),
        ("stop rank=1 step", "'step' in the fault 'stop rank=1 step' says nothing."),
        ("stop rank=1 rank=2 step=3", "'rank=2' in the fault 'stop rank=1 rank=2 step=3' says nothing."),
        ("stop rang=1 step=3", "'rang=1' in the fault 'stop rang=1 step=3' says nothing."),
        ("stop rank=-1 step=5", "rank=-1 in the fault 'stop rank=-1 step=5' is not a number from 0 on."),
        ("stop rank=one step=5", "rank=one in the fault 'stop rank=one step=5' is not a number from 0 on."),
        ("slow rank=1 step=5 seconds=nan", "seconds=nan in the fault 'slow rank=1 step=5 seconds=nan' is not"),
        ("stop rank=1 step=5 seconds=3", "The fault 'stop' has no length."),
        ("disk-full rank=1 step=5", "The fault 'disk-full rank=1 step=5': path= goes with disk-full."),
        ("kill rank=1 step=5; ; stop rank=2", "The fault 'stop rank=2' does not say where."),
    ],
)
def test_a_mistake_is_one_sentence(text, problem):
    with pytest.raises(UsageError) as caught:
        Plan.parse(text)
    assert caught.value.problem.startswith(problem)


def test_each_kind_has_an_effect_and_no_effect_is_without_a_kind():
    own = {*SCRIPTS_OWN, *LASTS_S, "disk-full"}
    assert set(KINDS) == own | set(_ACTS)
    assert not own & set(_ACTS)


def test_nothing_happens_without_the_variable_and_nothing_is_imported_for_it():
    """A script may keep the call: it costs a look at the environment."""
    program = "import sys; from samebits.testing import faults; print([faults.at(1), faults.sample(1), 'torch' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['', None, False]", done.stderr


def test_a_plan_without_a_folder_is_one_sentence(monkeypatch):
    monkeypatch.setenv("SAMEBITS_FAULTS", "skip rank=0 step=1")
    monkeypatch.delenv("SAMEBITS_FAULTS_FOLDER", raising=False)
    with pytest.raises(UsageError, match="SAMEBITS_FAULTS is set, but SAMEBITS_FAULTS_FOLDER is not"):
        faults.at(1)


def test_a_fault_that_never_happened_fails_the_test_that_counts_on_it(tmp_path):
    with pytest.raises(AssertionError, match="never happened: kill rank=1 step=5"):
        faults.assert_fired("kill rank=1 step=5", tmp_path)
