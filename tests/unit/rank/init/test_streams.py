"""The random streams of a process."""

import random

import numpy as np
import torch

from samebits.rank.init.random_streams import seed_process


def draws():
    return [
        [random.random() for _ in range(4)],
        np.random.rand(4).tolist(),
        torch.rand(4, dtype=torch.float64).tolist(),
    ]


def test_one_key_gives_the_same_numbers_again_and_another_key_gives_others():
    drawn = []
    for key in (7, 7, 8):
        seed_process(key)
        drawn.append(draws())
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))


def test_random_numpy_and_torch_do_not_draw_the_same_numbers():
    for key in (0, 1, 2**33, 2**64 - 1):
        seed_process(key)
        assert len({number for drawn in draws() for number in drawn}) == 12
