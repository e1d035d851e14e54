"""The devices that ranks would get, by name, as CUDA_VISIBLE_DEVICES leaves them."""

from __future__ import annotations

from lockstep.checkup.row import Row, note, ok
from lockstep.launch.screen.report import device_names


def device_row(names: tuple[str, ...], gpus: int, present: int, visible: str | None) -> Row:
    """What is there.

    Args:
        names: of the devices that torch can use.
        gpus: devices counted without torch, CUDA_VISIBLE_DEVICES respected.
        present: devices of the machine, CUDA_VISIBLE_DEVICES ignored.
        visible: CUDA_VISIBLE_DEVICES; None when it is not set.
    """
    if visible is not None and present and not gpus:
        hidden = "the GPU" if present == 1 else f"all {present} GPUs"
        return note("devices", f"cpu; CUDA_VISIBLE_DEVICES={visible!r} hides {hidden}", "Unset it to use them.")
    if not names:
        text = "cpu" if not gpus else f"cpu; {gpus} GPU{'s' if gpus > 1 else ''} that torch cannot use (see driver)"
        return ok("devices", text)
    chosen = f", by CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
    return ok("devices", f"{device_names(len(names), names)}{chosen}")
