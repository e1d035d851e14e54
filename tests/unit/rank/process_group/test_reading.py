"""Which tensors the compiled part reads by itself: exactly those whose numbers lie there as they are."""

import pytest
import torch
from torch import Tensor

from samebits.rank.transport.local.native import available

if not available():
    pytest.skip("this installation has no compiled part", allow_module_level=True)
if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch hands out no table for DLPack", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode

from samebits.rank.process_group.arguments import tensors
from samebits.rank.process_group.operands import Buffers
from samebits.rank.transport.local.native import compiled
from samebits.rank.transport.shared_memory import DTYPES


class Subclass(Tensor):
    """A tensor of the user's own class."""


def test_plain_tensors_of_every_dtype_are_read_at_their_address():
    for dtype in DTYPES:
        numbers = torch.zeros(6, dtype=dtype)
        for tensor in (numbers, numbers[2:], numbers.view(2, 3), numbers[1], numbers[:0], numbers.view(1, 6, 1)):
            assert tensors().address(tensor) == tensor.data_ptr()


def test_a_parameter_and_a_tensor_of_one_row_are_plain():
    parameter = torch.nn.Parameter(torch.ones(3))
    assert tensors().address(parameter) == parameter.data_ptr()
    row = torch.zeros(4, 6)[:1]
    assert row.stride() == (6, 1)
    assert tensors().address(row) == row.data_ptr()
    with torch.inference_mode():
        frozen = torch.ones(2)
    assert tensors().address(frozen) == frozen.data_ptr()


def test_what_has_its_numbers_elsewhere_or_otherwise_is_left_to_python():
    whole = torch.zeros(4, 6)
    complex_numbers = torch.zeros(3, dtype=torch.complex64)
    with FakeTensorMode():
        fake = torch.zeros(3)
    odd = {
        "a column": whole[:, 0],
        "transposed": whole.t(),
        "expanded": torch.zeros(1).expand(3),
        "negative": torch._neg_view(torch.ones(3)),
        "one negative number": complex_numbers.conj().imag[:1],
        "conjugate": complex_numbers.conj(),
        "complex": complex_numbers,
        "float8": torch.zeros(3).to(torch.float8_e5m2),
        "uint16": torch.zeros(3, dtype=torch.uint16),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "zeros without memory": torch._efficientzerotensor(3),
        "fake": fake,
        "of another class": torch.zeros(3).as_subclass(Subclass),
        "no tensor": [1.0],
        "none": None,
    }
    assert {name: tensors().address(tensor) for name, tensor in odd.items()} == dict.fromkeys(odd)


def test_tensors_of_transforms_are_left_to_python():
    seen = []

    def look(tensor):
        seen.append(tensors().address(tensor))
        return tensor.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    torch.func.functionalize(look)(torch.ones(3))
    assert seen == [None] * 3


def test_a_lazy_clone_gets_memory_of_its_own_before_it_is_written():
    original = torch.ones(4)
    clone = torch._lazy_clone(original)
    address = tensors().address(clone)
    assert address == clone.data_ptr() != original.data_ptr()


def test_without_the_table_every_tensor_is_left_to_python():
    blind = compiled.Tensors(None, [Tensor], [], [])
    assert blind.address(torch.ones(2)) is None


def test_buffers_keep_a_plain_tensor_and_copy_an_odd_one():
    plain, odd = torch.arange(4.0), torch.zeros(2, 3).t()
    buffers = Buffers()
    assert buffers.reads(plain) == buffers.writes(plain) == plain.data_ptr()
    assert buffers.reads(odd) != odd.data_ptr()
