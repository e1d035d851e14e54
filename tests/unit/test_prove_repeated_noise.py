"""In the row `plain`, random numbers do not depend on how a batch is cut."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Normal

from lockstep.run.place import Place, Region
from lockstep.run.repeated_noise import RepeatedNoise

OWN_GENERATOR = torch.Generator().manual_seed(3)
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "randn": lambda x: torch.randn(len(x), 3),
    "randn_like": torch.randn_like,
    "rand with a generator": lambda x: torch.rand(x.shape, generator=OWN_GENERATOR),
    "randint": lambda x: torch.randint(0, 1000, (len(x),)),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "multinomial": lambda x: torch.multinomial(x.softmax(1), 2),
    "poisson": lambda x: torch.poisson(x.abs() * 10),
    "Gamma": lambda x: Gamma(x.abs() + 1, torch.ones_like(x)).rsample(),
    "Normal": lambda x: Normal(x, 1.0).rsample(),
    "gumbel_softmax": torch.nn.functional.gumbel_softmax,
    "mixing by randperm": lambda x: x[torch.randperm(len(x))],
}
SAMPLES = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def drawn(draw: Callable[[Tensor], Tensor], samples: Tensor) -> Tensor:
    """The second draw of a lane with these samples."""
    noise = RepeatedNoise(Place(Region.LANE))
    with noise:
        noise.restart()
        draw(samples)
        return draw(samples)


@pytest.mark.parametrize("name", DRAWS)
def test_two_lanes_draw_what_the_whole_batch_draws(name: str) -> None:
    whole = drawn(DRAWS[name], SAMPLES)
    assert torch.equal(torch.cat([drawn(DRAWS[name], SAMPLES[:4]), drawn(DRAWS[name], SAMPLES[4:])]), whole)


def test_the_draws_of_a_lane_differ_from_each_other() -> None:
    with RepeatedNoise(Place(Region.LANE)):
        first, second = torch.randn(2, 5), torch.randn(2, 5)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first, second)


def test_outside_of_lanes_nothing_is_changed() -> None:
    torch.manual_seed(0)
    expected = torch.randn(4, 3)
    torch.manual_seed(0)
    with RepeatedNoise(Place(Region.SCRIPT)):
        assert torch.equal(torch.randn(4, 3), expected)
