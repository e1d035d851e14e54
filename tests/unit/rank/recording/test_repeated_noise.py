"""In the row `plain`, random numbers do not depend on how a batch is cut."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Normal

from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.recording.calm import RepeatedNoise

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
    noise = RepeatedNoise(LoopPosition(Region.LANE))
    with noise:
        noise.restart()
        draw(samples)
        return draw(samples)


@pytest.mark.parametrize("name", DRAWS)
def test_two_lanes_draw_what_the_whole_batch_draws(name: str) -> None:
    whole = drawn(DRAWS[name], SAMPLES)
    assert torch.equal(torch.cat([drawn(DRAWS[name], SAMPLES[:4]), drawn(DRAWS[name], SAMPLES[4:])]), whole)


def test_the_draws_of_a_lane_differ_from_each_other() -> None:
    with RepeatedNoise(LoopPosition(Region.LANE)):
        first, second = torch.randn(2, 5), torch.randn(2, 5)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first, second)


def test_outside_of_lanes_nothing_is_changed() -> None:
    torch.manual_seed(0)
    expected = torch.randn(4, 3)
    torch.manual_seed(0)
    with RepeatedNoise(LoopPosition(Region.SCRIPT)):
        assert torch.equal(torch.randn(4, 3), expected)


def attention(samples: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Causal attention of each sample with itself; `mask` by keyword, as models of the ecosystem call it."""
    heads = samples[:, None, :, None].repeat(1, 2, 1, 4).requires_grad_()
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask, dropout_p=dropout)


@pytest.mark.parametrize("length", [3, 6])
def test_attention_with_a_mask_for_each_sample_is_that_of_the_whole_batch(length: int) -> None:
    samples = torch.randn(6, length, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(6, 1, length, length, generator=torch.Generator().manual_seed(2)) < 0.7
    mask |= torch.eye(length, dtype=torch.bool)
    noise = RepeatedNoise(LoopPosition(Region.LANE))
    with noise:
        whole = attention(samples, mask)
        parts = [attention(samples[:4], mask[:4]), attention(samples[4:], mask[4:])]
        shared = attention(samples, mask[0, 0])
    assert torch.equal(whole, attention(samples, mask))
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(shared, attention(samples, mask[0, 0])), (
        "a mask for all samples is cut, where it has their number"
    )


def test_arguments_by_keyword_are_cut_into_samples_where_an_operation_draws() -> None:
    draws: list[tuple[int, ...]] = []

    def noisy(x: Tensor, *, scale: Tensor) -> Tensor:
        draws.append((len(x), len(scale)))
        return x + scale * torch.randn(x.shape)

    library = torch.library.Library("samebits_tests", "DEF")
    library.define("noisy(Tensor x, *, Tensor scale) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("noisy", noisy, "CPU")
    scale = torch.arange(6.0)[:, None]
    with RepeatedNoise(LoopPosition(Region.LANE)):
        whole = torch.ops.samebits_tests.noisy(SAMPLES, scale=scale)
    assert set(draws[1:]) == {(1, 1)}
    difference = (whole - SAMPLES)[1:] / scale[1:]
    assert torch.allclose(difference, difference[:1].expand_as(difference), atol=1e-5)


def test_an_operation_in_place_that_drew_is_undone_before_it_is_made_again_by_samples() -> None:
    with RepeatedNoise(LoopPosition(Region.LANE)):
        drawn_rows = torch.nn.functional.rrelu_(SAMPLES[:1].expand(4, 3).clone(), training=True)
    assert torch.equal(drawn_rows, drawn_rows[:1].expand(4, 3))
    positive = SAMPLES[:1] > 0
    assert torch.equal(drawn_rows[:1][positive], SAMPLES[:1][positive])
    assert bool((drawn_rows[:1][~positive] / SAMPLES[:1][~positive] > 1 / 8 - 1e-6).all())
