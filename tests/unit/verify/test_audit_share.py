"""How probable it is that an audit misses a forged segment."""

import itertools

import pytest

from samebits.verify.audit.plan import share_missed


@pytest.mark.parametrize(("checked", "of"), [(1, 1), (1, 4), (3, 4), (3, 12), (12, 12), (1, 2)])
def test_it_is_that_of_the_segments_that_are_drawn(checked, of):
    draws = list(itertools.combinations(range(1, of), checked - 1))
    missed = sum(forged not in drawn for drawn in draws for forged in range(1, of))
    assert share_missed(checked, of) == pytest.approx(missed / (len(draws) * max(of - 1, 1)))
