"""A dead rank is replaced only if it had come to where the survivors wait, as far as that matters."""

import threading
import time

import pytest

from lockstep.handover.run_folder import RunFolder
from lockstep.journal.reached import Reached
from lockstep.journal.ring import make_ring
from lockstep.run.outlive import others
from lockstep.run.outlive.others import Others


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.journal(0).parent.mkdir()
    for rank in range(3):
        make_ring(folder.journal(rank), rank)
        Reached(folder.journal(rank)).note(4, 1)
    return folder


def test_ranks_at_one_place_can_be_replaced(folder):
    assert not Others(folder, 1, 3).objection([0, 2], is_spread=True, is_hidden=False)


def test_rank_0_between_two_steps_may_have_had_something_to_do_for_all(folder):
    Reached(folder.journal(1)).note(5, 1)
    assert "rank 0 died between two steps" in Others(folder, 1, 3).objection([0], is_spread=False, is_hidden=False)


def test_another_rank_counts_only_where_it_held_a_share(folder):
    Reached(folder.journal(0)).note(5, 1)
    assert not Others(folder, 0, 3).objection([1, 2], is_spread=False, is_hidden=False)
    assert "rank 1 died between two steps" in Others(folder, 0, 3).objection([1, 2], is_spread=True, is_hidden=False)


def test_one_that_was_to_replace_it_and_died_further_back_changes_nothing(folder):
    survivor = Others(folder, 0, 3)
    assert not survivor.objection([1], is_spread=True, is_hidden=False)
    Reached(folder.journal(1)).note(3, 0)
    assert not survivor.objection([1], is_spread=True, is_hidden=False)
    Reached(folder.journal(0)).note(5, 1)
    assert survivor.objection([1], is_spread=True, is_hidden=False), "now this rank is somewhere else"


def test_a_rank_that_lives_may_still_be_on_its_way(folder, monkeypatch):
    Reached(folder.journal(0)).note(5, 1)
    Reached(folder.journal(1)).note(5, 1)

    def come():
        time.sleep(0.05)
        Reached(folder.journal(2)).note(5, 1)

    thread = threading.Thread(target=come)
    thread.start()
    assert not Others(folder, 0, 3).objection([1], is_spread=True, is_hidden=False)
    thread.join()
    Reached(folder.journal(2)).note(4, 1)
    monkeypatch.setattr(others, "PATIENCE_S", 0.01)
    assert "rank 2 has not come" in Others(folder, 0, 3).objection([1], is_spread=True, is_hidden=False)
