"""What `run.save_weights` may be called with."""

import re

import pytest

from samebits.errors import UsageError
from samebits.rank.checkpoint.weights.save import check_name


@pytest.mark.parametrize("name", ["net.pt", "out/net.pth", "pytorch_model.bin", "s3://bucket/net.pt"])
def test_a_name_that_promises_a_file_of_torch_save_is_refused(name):
    """It would be safetensors all the same, and torch.load would say something about pickle."""
    with pytest.raises(UsageError, match=f"writes safetensors, which torch.load cannot read, but '{re.escape(name)}'"):
        check_name(name)


def test_any_other_name_is_taken(tmp_path):
    for name in ("net.safetensors", "net", "net.ckpt", tmp_path / "x", "s3://bucket/net.safetensors"):
        check_name(name)
    for name in (tmp_path, "", "a\0b", "/dev/null"):
        with pytest.raises(UsageError, match="writes a file, but"):
            check_name(name)
