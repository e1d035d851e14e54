"""Buffers that are registered without a value, or not yet: no lane may make them, as they have none that all start from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samebits.errors import UsageError


class BuffersToCome:
    """Those of modules, as they are now.

    Args:
        models: (label, module) pairs; the label is the beginning of names, and may be empty.
    """

    def __init__(self, models: Sequence[tuple[str, nn.Module]]) -> None:
        self._modules = [
            (".".join(filter(None, (label, path))), module)
            for label, model in models
            for path, module in model.named_modules()
        ]
        self._tables = [module._buffers for _, module in self._modules]  # noqa: SLF001 - as in `buffers`
        self._sized = {
            (id(module), key)
            for _, module in self._modules
            for key, one in module._buffers.items()  # noqa: SLF001
            if _has_size(one)
        }
        self._num_keys = sum(map(len, self._tables))
        self._has_unsized = len(self._sized) < self._num_keys

    def refuse(self) -> None:
        """Raise `UsageError` if one of them has come since then."""
        if not self._has_unsized and sum(map(len, self._tables)) == self._num_keys:
            return
        for path, module in self._modules:
            for key, now in module._buffers.items():  # noqa: SLF001
                if _has_size(now) and (id(module), key) not in self._sized:
                    raise UsageError(
                        f"The buffer {'.'.join(filter(None, (path, key)))!r} got its size inside a lane, so each rank would "
                        "keep what its own lanes made of it.",
                        "Run one batch through the model before run.prepare, or keep it as a plain attribute.",
                    )


def _has_size(buffer: Tensor | None) -> bool:
    # Of a sparse one the number of its values may change; it is compared by its counted writes.
    return buffer is not None and (buffer.layout is not torch.strided or buffer.numel() > 0)
