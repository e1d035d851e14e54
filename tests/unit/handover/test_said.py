"""What a rank prints that takes a dead one's place goes on where that one stopped."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.handover.said import unsaid

LINES = st.lists(st.text("abc", max_size=3), max_size=9, unique=True).map(lambda lines: "\n".join(lines).encode())


@given(LINES, st.integers(0, 40), st.integers(0, 40))
def test_every_byte_is_printed_once_wherever_the_dead_rank_stopped(output, one, other):
    stop = min(max(one, other), len(output))
    place = output.rfind(b"\n", 0, min(one, other, stop)) + 1
    assert output[:stop] + unsaid(output[:stop], output[place:]) == output


def test_what_differs_a_second_time_is_printed_again():
    assert unsaid(b"one\n12:01 two\n", b"14:01 two\n14:02 three\n") == b"14:01 two\n14:02 three\n"


def test_a_rank_that_had_printed_nothing_prints_all():
    assert unsaid(b"", b"one\n") == b"one\n"


def test_a_rank_that_prints_nothing_again_prints_nothing():
    assert unsaid(b"one\ntw", b"") == b""
