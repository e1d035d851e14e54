"""`torch.compile` before or after `prepare`: the same bits on any number of ranks, single-device keys in files."""

import sys

import pytest

from lockstep.testing.ranks import Started, run_ranks
from tests.scripts import compiled

pytestmark = pytest.mark.ranks


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_compiled_model_has_the_same_bits_on_1_2_and_4_ranks(ranks):
    if not compiled.COMPILER:
        print("no C++ compiler was found: aot_eager instead of inductor", file=sys.stderr)
    [alone] = run_ranks(compiled.as_users_do, Started(1, timeout_s=240))
    assert run_ranks(compiled.as_users_do, Started(ranks, timeout_s=240)) == [alone] * ranks


@pytest.mark.compiles
def test_compiled_before_or_after_prepare_the_bits_are_the_same():
    [alone] = run_ranks(compiled.before_and_after, Started(1, timeout_s=240))
    assert run_ranks(compiled.before_and_after, Started(2, timeout_s=240)) == [alone] * 2


@pytest.mark.thorough
def test_compiled_before_or_after_prepare_whole_or_in_part_the_bits_are_the_same():
    [alone] = run_ranks(compiled.every_way, Started(1))
    assert run_ranks(compiled.every_way, Started(2)) == [alone] * 2
