"""Which parameters of replicas differ, in a sentence; and that a rank's models are told apart from copies of them."""

import copy
import pickle

import pytest
from torch import nn

from samebits.protocol.case import cases_in
from samebits.protocol.run_folder import RunFolder
from samebits.rank.checks.ddp_replicas import EVERY, Replicas, apart


@pytest.mark.parametrize(
    ("sums", "said", "ranks"),
    [
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "'b' is not the same on rank 1 as on rank 0", (1,)),
        (
            [{"a": 1, "b": 2}] * 2 + [{}],
            "'a' (and 1 more of 2 parameters) is not the same on rank 2 as on rank 0",
            (2,),
        ),
        ([{"a": 1}, {"a": 2}, {"a": 3}], "'a' is not the same on ranks 1, 2 as on rank 0", (1, 2)),
    ],
)
def test_what_differs_is_named_with_its_ranks(sums, said, ranks):
    assert apart(dict(enumerate(sums))) == (said, ranks)
    assert apart(dict.fromkeys(range(3), sums[0])) is None


class Wrapped(nn.Module):
    """As DDP holds a model."""

    def __init__(self, *bias):
        super().__init__()
        self.module = nn.Linear(2, len(bias))
        nn.init.zeros_(self.module.weight)
        self.module.bias.data = self.module.bias.data.new_tensor(bias)


def two_ranks(path):
    return [Replicas(RunFolder(path), rank, range(2), 2) for rank in range(2)]


def test_the_last_rank_that_comes_says_it_once(tmp_path, capsys):
    models = [Wrapped(1.0), Wrapped(2.0)]
    for replicas, model in zip(two_ranks(tmp_path), models, strict=True):
        replicas.begins(model)
        for _ in range(EVERY):
            replicas.forward(model)
        replicas.ends(model)
    [case] = cases_in(tmp_path / "findings.jsonl")
    assert (case.ranks, "'bias' is not the same on rank 1" in case.said) == ((1,), True)
    assert "A script that averages them now and then has them apart in between" in capsys.readouterr().err


def test_copies_evaluations_and_what_a_script_leaves_behind_say_nothing(tmp_path):
    for replicas, model in zip(two_ranks(tmp_path), [Wrapped(1.0), Wrapped(2.0)], strict=True):
        replicas.begins(model)
        replicas.ends(model)  # it was never trained
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            replicas.forward(other)
            replicas.ends(other)
        replicas.forward(model.eval())
        replicas.over()
        replicas.forward(model.train())
        replicas.ends(model)
    assert not (tmp_path / "replicas").exists()
