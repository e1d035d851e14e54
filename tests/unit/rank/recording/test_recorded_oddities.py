"""What a record is made of where a script has odd things: a run does not end because of its record."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from samebits.rank.recording.conditions import files_of_script
from samebits.rank.recording.run_record import _of_data as digest_of
from samebits.rank.recording.run_record import step_body


class Failing:
    """Stands for a module, and fails where it is asked."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class FailingModule(ModuleType):
    def __getattr__(self, name):
        raise ImportError(name)


def test_what_fails_where_it_is_asked_is_no_source_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "samebits_failing", Failing())
    monkeypatch.setitem(sys.modules, "samebits_failing_module", FailingModule("failing"))
    assert not any("failing" in name for name in files_of_script({}))


@pytest.mark.parametrize(
    "batch",
    [
        [torch.ones(3, dtype=torch.complex64).conj()],
        [np.zeros(2, dtype=[("a", object), ("b", int)])],
        {"any": Failing()},
    ],
    ids=["conjugate", "objects", "failing"],
)
def test_a_batch_whose_bytes_cannot_be_read_counts_by_its_class(batch):
    assert digest_of(batch) == digest_of(batch)
    assert len(digest_of(batch)) == 16


def test_a_line_says_from_where_on_no_step_had_a_backward():
    own = [(0, "1" * 28), (1, "2" * 28)]
    assert "from" not in step_body(5, 1, own, 5)
    assert step_body(5, 1, own, 3) == {**step_body(5, 1, own, 5), "from": 3}
