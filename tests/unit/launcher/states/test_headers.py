"""Names, dtypes and sizes of tensors come from headers, whatever their bytes are, and are shown in words."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from samebits.errors import UsageError
from samebits.launcher.states.description import Header, headers_of
from samebits.launcher.states.report import text_of
from samebits.rank.checkpoint.format.tensor_file import CODES


def test_every_dtype_of_a_state_is_read_without_torch(tmp_path):
    save_file({code: torch.zeros(3, 4).to(dtype) for dtype, code in CODES.items()}, tmp_path / "a.safetensors")
    headers = headers_of(tmp_path / "a.safetensors")
    assert sorted(headers, key=repr) == sorted((Header(code, code, 12) for code in CODES.values()), key=repr)


@given(st.binary(max_size=60), st.integers(0, 80))
def test_any_bytes_are_headers_or_one_sentence(tmp_path_factory, junk, at):
    path = tmp_path_factory.mktemp("junk") / "a.safetensors"
    for text in (junk, (whole := save({"a": torch.zeros(2)}))[:at] + junk + whole[at + len(junk) :]):
        path.write_bytes(text)
        with contextlib.suppress(UsageError):  # and nothing else
            headers_of(path)


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
    for length in (len(header), 1 << 40):  # nothing of that size is allocated
        path.write_bytes(length.to_bytes(8, "little") + header + b"1234")
        with pytest.raises(UsageError, match="has no sound header of a safetensors file"):
            headers_of(path)


def test_bytes_behind_the_last_tensor_and_an_early_end_are_refused(tmp_path):
    text = save({"a": torch.zeros(2)})
    for wrong in (text + b"x", text[:-1]):
        (tmp_path / "a").write_bytes(wrong)
        with pytest.raises(UsageError, match="has no sound header"):
            headers_of(tmp_path / "a")


def test_values_are_readable():
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1 << 20: "1.0 MiB",
        (1 << 20) - 1: "1.0 MiB",
        5 << 40: "5.0 TiB",
    }
    assert {size: text_of(size, "size_bytes") for size in sizes} == sizes
    told = {"num_losses": 1200, "loss": 0.1, "of_samples": None, "names": [["a", "b"], ["c", "d"]], "each_once": True}
    assert text_of(told) == "losses 1,200, loss 0.1, names a b, c d, each once yes"
