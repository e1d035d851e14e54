"""What is said when ranks take different samples names what differs."""

from samebits.rank.run.loop.epoch import other_order


def test_equal_counts_are_not_told_as_a_difference():
    assert other_order(["a", 16, 4], 1, ["b", 16, 4]) == (
        "rank 1 takes others than rank 0, or in another order (16 samples in 4 steps on both)"
    )
    assert other_order(["a", 16, 4], 1, ["b", 12, 3]) == "rank 0 has 16 samples in 4 steps, rank 1 has 12 in 3"
