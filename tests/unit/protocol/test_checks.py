"""How often ranks compare their bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.saving import LEAST_STEPS, MOST_STEPS, chosen_steps, parse_checks


def test_steps_or_off() -> None:
    assert [parse_checks(text) for text in ("50steps", "1step", "7 steps", "off")] == [50, 1, 7, 0]


@pytest.mark.parametrize("text", ["", "0steps", "-1steps", "10min", "epoch", "50", "on"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--check-every .* cannot be read\. Write 50steps or off\.$"):
        parse_checks(text, "--check-every ")


@given(st.integers(0, 10**12), st.integers(0, 10**6))
def test_more_to_compare_is_compared_less_often_but_within_50_steps(num_bytes: int, num_tensors: int) -> None:
    every = chosen_steps(num_bytes, num_tensors)
    assert LEAST_STEPS <= every <= MOST_STEPS
    assert every <= chosen_steps(num_bytes + 10**6, num_tensors)
    assert every <= chosen_steps(num_bytes, num_tensors + 1)


def test_small_models_are_compared_often_and_a_million_parameters_with_adam_every_50_steps() -> None:
    assert chosen_steps(10_000, 8) == LEAST_STEPS
    assert chosen_steps(1_200_000, 12) == 12
    assert chosen_steps(12_000_000, 12) == MOST_STEPS
