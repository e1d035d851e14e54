"""Shares of an optimizer's state in memory that outlives their ranks: whole when they are put together, or refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lockstep.errors import WorldError
from lockstep.strategy.optimizer_kinds import UpdatesBy
from lockstep.strategy.replica.arena import ParameterArena
from lockstep.strategy.zero1.kept_state import MOST_MOVES
from lockstep.strategy.zero1.share import Share
from lockstep.testing.fake_transport import FakeWorld

SHAPES = [(40, 70), (7,), (), (3, 5), (5000,), (64, 64), (0, 3)]


class Counting(torch.optim.SGD):
    """With a number in its state that grows."""

    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                state["count"] = state.get("count", 0.1) * 10
                state["name"] = "x"
                state.setdefault("sum", torch.zeros_like(p)).add_(p.grad)


class Fresh(torch.optim.SGD):
    """With new tensors in its state after each step."""

    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.state[p]["sum"] = self.state[p].get("sum", torch.zeros_like(p)) + p.grad


class Viewing(torch.optim.SGD):
    """With tensors in its state that are parts of a larger one."""

    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None and not self.state[p]:
                self.state[p]["sum"], self.state[p]["squares"] = torch.zeros(2, p.numel())


MAKE = {
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "nothing": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "AdamW": torch.optim.AdamW,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "NAdam": torch.optim.NAdam,
    "numbers": Counting,
}


class Setting:
    """One rank's optimizer over its share, in memory that all threads see."""

    def __init__(self, transport, make, shapes=SHAPES):
        world = transport._world
        transport.outlives = True
        transport.allocate_once = lambda size, dtype, _: SimpleNamespace(
            master=world.meet(transport.rank, torch.zeros(size, dtype=dtype))[0]
        )
        torch.manual_seed(1)
        self.parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        self.optimizer, self.transport = make(self.parameters), transport
        arena = ParameterArena([("model", nn.ParameterList(self.parameters))])
        self.share = Share(self.optimizer, UpdatesBy.ELEMENT, arena, transport, lambda _: None)
        self.share.link([], [])
        self.made = 0

    def update(self, times=1):
        for number in range(times):
            generator = torch.Generator().manual_seed(number)
            for parameter in self.parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            self.share.begins()
            self.share.settle(self.share.division.arena)
            self.share.updated = list(self.parameters)
            self.share.enter(None)
            self.optimizer.step()
            self.share.ends()
            if self.transport.any(self.share.asks_for_memory()):
                self.share.make_memory()
                self.made += 1
        return self

    def alone(self):
        """The whole state by the parameters' numbers, or why there is none, when all ranks are here."""
        self.transport.barrier()
        try:
            found = self.share.state_alone()
        except WorldError as error:
            return str(error)
        finally:
            self.transport.barrier()
        return {number: found[one] for number, one in enumerate(self.parameters) if one in found}


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(value, right[key]) and value.stride() == right[key].stride()
        if isinstance(value, torch.Tensor)
        else value == right[key]
        for key, value in left.items()
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", MAKE)
def test_one_rank_reads_the_whole_state_that_all_put_together(kind, ranks):
    def rank_of(transport):
        setting = Setting(transport, MAKE[kind]).update(5)
        alone, whole = setting.alone(), setting.share.whole_state(everyone=True)
        assert setting.made == 1, "tensors move once"
        return alone, {n: whole[one] for n, one in enumerate(setting.parameters) if one in whole}

    for alone, whole in FakeWorld(ranks).run(rank_of):
        assert alone.keys() == whole.keys(), alone
        assert all(same(alone[number], whole[number]) for number in whole)


def test_a_share_in_the_middle_of_an_update_is_not_taken():
    def rank_of(transport):
        setting = Setting(transport, torch.optim.AdamW).update(2)
        if transport.rank == 1:
            setting.share._kept.begin()
        return setting.alone()

    assert FakeWorld(3).run(rank_of)[0] == "rank 1 was in an update"


def test_what_the_script_puts_into_the_state_between_updates_is_not_guessed_of_others():
    def rank_of(transport):
        setting = Setting(transport, torch.optim.AdamW).update(2)
        for entry in setting.optimizer.state.values():
            entry["exp_avg"] = torch.zeros_like(entry["exp_avg"])
        told = setting.alone()
        setting.update()
        return told, isinstance(setting.alone(), dict)

    for told, is_whole in FakeWorld(2).run(rank_of):
        assert told == "the script has changed the optimizer's state since its last update"
        assert is_whole, "after the next update it is known again"


def test_after_ranks_were_replaced_the_shares_are_there_again_with_the_next_update():
    def rank_of(transport):
        setting = Setting(transport, torch.optim.AdamW).update(2)
        transport.generation += 1
        told = setting.alone()
        return told, isinstance(setting.update().alone(), dict)

    assert FakeWorld(2).run(rank_of)[0] == ("a rank was replaced, and there was no update since then", True)


def test_an_optimizer_that_always_makes_new_tensors_is_given_up():
    def rank_of(transport):
        setting = Setting(transport, Fresh).update(3)
        is_whole = isinstance(setting.alone(), dict)
        setting.update(MOST_MOVES + 5)
        return is_whole, setting.made, setting.alone()

    nowhere = "the other ranks cannot read its share of the optimizer's state"
    assert set(FakeWorld(2).run(rank_of)) == {(True, MOST_MOVES + 1, nowhere)}


def test_tensors_that_something_else_looks_at_stay_where_they_are():
    def rank_of(transport):
        setting = Setting(transport, Viewing).update(3)
        return setting.made, setting.alone()

    assert FakeWorld(2).run(rank_of) == [(1, "the other ranks cannot read its share of the optimizer's state")] * 2


def test_a_rank_without_a_share_does_not_vouch_for_others():
    def rank_of(transport):
        setting = Setting(transport, torch.optim.AdamW, [(5,)]).update(2)
        return len(setting.share.division.pieces), setting.alone()

    told = FakeWorld(2).run(rank_of)
    assert [alone for pieces, alone in told if not pieces] == [
        "the other ranks cannot read its share of the optimizer's state"
    ]
    assert all(isinstance(alone, dict) for pieces, alone in told if pieces)
