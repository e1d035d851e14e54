"""Ranks on GPUs of different kinds are named: a lane has other bits there."""

from samebits.rank.init.numerics import unlike_devices


def test_equal_devices_are_no_news():
    assert unlike_devices(["cpu", "cpu"]) == ""
    assert unlike_devices(["H100"] * 4) == ""


def test_different_devices_are_told_with_their_ranks():
    assert unlike_devices(["A100", "H100", "H100"]) == (
        "the ranks' devices differ, and bits depend on them: A100 on rank 0; H100 on ranks 1, 2. On devices of one kind they "
        "are equal."
    )
    assert "H100 on ranks 1, 2, 3, 4, 60 more" in unlike_devices(["A100", *["H100"] * 64])
