"""A layer of another stage is followed once for each form of call, unless it does something that others see."""

import random

import torch
from torch import nn

from samebits.rank.strategy.stages.ghost import GhostLayer, Ghosts
from samebits.rank.strategy.stages.meta_placeholder import MetaPlaceholder

STATE = {"calls": 0}


class Layer(nn.Module):
    def __init__(self, work=lambda: None):
        super().__init__()
        self.inner, self.work, self.runs = nn.Linear(4, 3), work, 0

    def forward(self, x, mask=None, cache=None):
        self.runs += 1
        self.work()
        if cache is not None:
            cache.append(x)
        return self.inner(x), x, mask


def following(layer, *calls, outside=lambda: STATE["calls"]):
    """What each of some calls returned, while the layer was followed."""
    ghosts = Ghosts(torch.device("cpu"))
    ghost_layer = GhostLayer(layer, lambda: ghosts.on, outside)
    ghosts.begin()
    try:
        return [layer(torch.empty(2, 4, device="meta").as_subclass(MetaPlaceholder), **call) for call in calls]
    finally:
        ghosts.end()
        ghost_layer.remove()


def test_a_layer_is_followed_once_for_each_form_and_gives_new_ghosts():
    layer, mask = Layer(), torch.ones(2)
    results = following(layer, {"mask": mask}, {"mask": mask}, {"mask": torch.ones(3)})
    assert layer.runs == 2
    assert all(result[0].is_meta and result[0].shape == (2, 3) for result in results)
    assert results[0][0] is not results[1][0]
    assert results[1][2] is mask  # what came in goes out as it is


def test_a_layer_that_changes_what_others_see_is_followed_in_full_each_time():
    layer = Layer(lambda: STATE.update(calls=STATE["calls"] + 1))
    following(layer, {}, {}, {})
    assert layer.runs == 3
    layer = Layer(random.random)
    following(layer, {}, {}, outside=random.getstate)
    assert layer.runs == 2


def test_a_cache_that_is_passed_in_is_filled_by_every_call():
    layer, caches = Layer(), [Cache(), Cache()]
    following(layer, *({"cache": cache} for cache in caches))
    assert [len(cache.kept) for cache in caches] == [1, 1]


class Cache:
    def __init__(self):
        self.kept = []

    def append(self, x):
        self.kept.append(x)


def test_a_mask_picks_as_many_ghosts_as_it_has_elements():
    ghosts = Ghosts(torch.device("cpu"))
    mask = torch.tensor([[True, False], [True, True]])
    ghosts.begin()
    try:
        x = torch.empty(2, 2, 5, device="meta").as_subclass(MetaPlaceholder)
        assert x[mask].shape == (3, 5)
        assert x[0, mask[0]].shape == (1, 5)
        assert torch.histc(x).shape == (100,)
    finally:
        ghosts.end()


def test_what_went_to_the_next_stage_is_a_ghost_and_is_not_written_to():
    ghosts, handed = Ghosts(torch.device("cpu")), torch.ones(3)
    ghosts.begin([handed])
    try:
        handed.mul_(2)
        handed.view(3, 1)[0] = 5
        assert (handed + 1).is_meta
    finally:
        ghosts.end()
    assert handed.tolist() == [1, 1, 1]
