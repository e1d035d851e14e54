"""Gradients between two steps in the file of a state: sparse ones come back sparse, with the same rows."""

import pytest
import torch

from samebits.errors import UsageError
from samebits.rank.checkpoint.format.state import TensorSet
from samebits.rank.checkpoint.format.tensor_file import TensorFile
from samebits.rank.checkpoint.parts.gradients import ROWS, add_gradient, saved_gradients

safetensors = pytest.importorskip("safetensors.torch")
PARAMETERS = {"words": torch.zeros(6, 2), "bias": torch.zeros(3), f"odd{ROWS}": torch.zeros(2)}


def read(folder, tensors):
    safetensors.save_file(tensors, folder / "gradients.safetensors")
    return saved_gradients(TensorFile(folder / "gradients.safetensors"), PARAMETERS, "Nothing was changed.")


def written(**gradients):
    found = TensorSet()
    for name, one in gradients.items():
        add_gradient(found, name, one)
    return found.tensors


def sparse(rows):
    values = torch.arange(2.0 * len(rows)).view(-1, 2)
    return torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.int64), values, (6, 2), check_invariants=True)


@pytest.mark.parametrize("rows", [[0, 1, 4], [4, 1, 4], []], ids=["in order", "twice", "none"])
def test_a_sparse_gradient_has_the_same_rows_also_those_of_zeros(tmp_path, rows):
    found = read(tmp_path, written(words=sparse(rows), bias=torch.ones(3)))
    assert found["words"].is_coalesced()
    assert found["words"].indices().tolist() == [sorted(set(rows))]
    assert found["words"].values().equal(sparse(rows).coalesce().values())
    assert found["bias"].tolist() == [1, 1, 1]


def test_a_parameter_may_be_named_like_rows(tmp_path):
    found = read(tmp_path, written(**{f"odd{ROWS}": torch.ones(2)}))
    assert found[f"odd{ROWS}"].tolist() == [1, 1]


WRONG = {
    "no parameter": {"word": torch.zeros(6, 2)},
    "another shape": {"words": torch.zeros(6, 3)},
    "rows alone": {f"words{ROWS}": torch.tensor([1])},
    "rows of nothing": {f"word{ROWS}": torch.tensor([1])},
    "a row too far": {"words": torch.zeros(6, 2), f"words{ROWS}": torch.tensor([1, 6])},
    "a row below zero": {"words": torch.zeros(6, 2), f"words{ROWS}": torch.tensor([-1])},
    "a row twice": {"words": torch.zeros(6, 2), f"words{ROWS}": torch.tensor([1, 1])},
    "rows in two dimensions": {"words": torch.zeros(6, 2), f"words{ROWS}": torch.tensor([[1]])},
    "rows of another type": {"words": torch.zeros(6, 2), f"words{ROWS}": torch.tensor([1.0])},
}


@pytest.mark.parametrize("tensors", WRONG.values(), ids=WRONG)
def test_what_fits_no_parameter_is_one_sentence(tmp_path, tensors):
    with pytest.raises(UsageError, match="fits no parameter"):
        read(tmp_path, tensors)
