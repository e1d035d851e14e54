"""The header of a safetensors file is read without the library, and whatever its bytes are."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from lockstep.checkpoint.tensor_file import CODES
from lockstep.errors import UsageError
from lockstep.states.tables import count, size_text
from lockstep.states.tensor_table import WIDTHS, read_table

TENSORS = {"weight": torch.zeros(3, 4), "bias": torch.zeros(4, dtype=torch.bfloat16), "step": torch.tensor(1)}


def test_names_dtypes_shapes_and_sizes_are_those_of_the_library(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"format": "pt"})
    table = read_table(tmp_path / "a.safetensors")
    told = {row.name: (row.dtype, row.shape, row.num_elements, row.size_bytes) for row in table.rows}
    assert told == {"weight": ("F32", (3, 4), 12, 48), "bias": ("BF16", (4,), 4, 8), "step": ("I64", (), 1, 8)}
    assert (table.num_bytes, table.cut_off()) == (64, [])


def test_a_file_that_ends_early_names_the_tensors_that_are_not_whole(tmp_path):
    path = tmp_path / "a.safetensors"
    text = save(TENSORS)
    path.write_bytes(text[:-1])
    rows = sorted(read_table(path).rows, key=lambda row: row.end)
    assert read_table(path).cut_off() == [rows[-1].name]
    path.write_bytes(text[: -rows[-1].size_bytes - 1])
    assert sorted(read_table(path).cut_off()) == sorted(row.name for row in rows[-2:])


@given(st.binary(max_size=60), st.integers(0, 80))
def test_any_bytes_are_a_table_or_one_sentence(tmp_path_factory, junk, at):
    path = tmp_path_factory.mktemp("junk") / "a.safetensors"
    for text in (junk, (whole := save({"a": torch.zeros(2)}))[:at] + junk + whole[at + len(junk) :]):
        path.write_bytes(text)
        with contextlib.suppress(UsageError):  # and nothing else
            read_table(path)


@pytest.mark.parametrize(
    "header", [b"[]", b'{"a": {}}', b'{"a": {"dtype": 1, "shape": [], "data_offsets": [0, 4]}}', b"[" * 100_000,
               b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
               b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
               b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
               b'{"a": {"dtype": "U8", "shape": [4], "shape": [4], "data_offsets": [0, 4]}}',
               b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 4]}}',
               b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
               (b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
                b' "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}'),
               b'{"a": {"dtype": "NEW", "shape": [' + b"9223372036854775807," * 100_000 + b'1], "data_offsets": [0, 4]}}'],
    ids=lambda header: header[:60].decode(),
)  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UsageError, match="has no sound header of a safetensors file"):
        read_table(path)
    path.write_bytes((1 << 40).to_bytes(8, "little") + header)  # nothing of that size is allocated
    with pytest.raises(UsageError, match="has no sound header of a safetensors file"):
        read_table(path)


def test_a_tensor_of_a_dtype_that_is_not_known_here_has_the_size_that_is_said(tmp_path):
    header = b'{"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}'
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    table = read_table(tmp_path / "a")
    assert ([(row.dtype, row.num_elements) for row in table.rows], table.is_filled) == ([("F4", 4)], True)


def test_the_widths_are_those_of_torchs_dtypes():
    assert {code: dtype.itemsize for dtype, code in CODES.items()} == WIDTHS


def test_bytes_behind_the_last_tensor_are_noticed(tmp_path):
    text = save(TENSORS)
    for more, is_filled in ((b"", True), (b"x", False)):
        (tmp_path / "a").write_bytes(text + more)
        assert read_table(tmp_path / "a").is_filled is is_filled


def test_sizes_and_counts_are_readable():
    assert [size_text(size) for size in (0, 1023, 1024, 1 << 20, (1 << 20) - 1, 5 << 40, None)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB", "5.0 TiB", "–",
    ]  # fmt: skip
    assert (count(1, "tensor"), count(1200, "tensor")) == ("1 tensor", "1,200 tensors")
