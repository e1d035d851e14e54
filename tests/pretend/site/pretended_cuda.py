"""The Python half of the device: what a CPU build of torch lacks in `torch._C` and in `torch.cuda`."""

import contextlib
import os

import pretended_norm
import torch

VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")
PRESENT = int(os.environ["PRETENDED_GPUS"])
CARD_BYTES = int(os.environ.get("PRETENDED_GPU_BYTES", "0")) or 80 << 30
COUNT = PRESENT if VISIBLE is None else min(PRESENT, len([one for one in VISIBLE.split(",") if one.strip().isdigit()]))


class Properties:
    """Of every device."""

    name, major, minor, total_memory, multi_processor_count = "Pretended H100", 9, 0, CARD_BYTES, 132


class Stream(torch.Stream):
    """`torch.cuda.Stream`, which in a CPU build is empty."""

    def __new__(cls, device=None, priority=0, **how):
        return (
            torch.Stream.__new__(cls, **how) if how else torch.Stream.__new__(cls, _device(device), priority=priority)
        )

    @property
    def cuda_stream(self):
        return self.stream_id


class Event(torch.Event):
    """`torch.cuda.Event`."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        return torch.Event.__new__(cls, torch.device("cuda"), enable_timing=enable_timing)


def _index(device):
    if device is None or device == "cuda":
        return torch.ops.pretend.device()
    if isinstance(device, int):
        return device if device >= 0 else torch.ops.pretend.device()
    if torch.device(device).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    index = torch.device(device).index
    return torch.ops.pretend.device() if index is None else index


def _device(device):
    return torch.device("cuda", _index(device))


def _init():
    torch.cuda.default_generators = tuple(torch.ops.pretend.generator(index) for index in range(COUNT))


def _generator(device):
    torch.cuda._lazy_init()
    return torch.cuda.default_generators[_index(device)]


def get_rng_state(device="cuda"):
    return _generator(device).get_state()


def set_rng_state(state, device="cuda"):
    _generator(device).set_state(state)


def current_stream(device=None):
    index = _index(device)
    return Stream(stream_id=torch.ops.pretend.stream(index), device_index=index, device_type=1)


def default_stream(device=None):
    return Stream(stream_id=0, device_index=_index(device), device_type=1)


@contextlib.contextmanager
def stream(chosen):
    if chosen is None:
        yield
        return
    with chosen:
        yield


def _memory_stats(device):
    now, peak = torch.ops.pretend.memory(device)
    return {"allocated_bytes": {"all": {"current": now, "peak": peak}}}


def _new_storage(cls, *args, device=None, **named):
    """`UntypedStorage(...)`, whose constructor knows no devices in a CPU build; `deepcopy` and `torch.load` call it."""
    if device is None or torch.device(device).type != "cuda":
        return torch._C.StorageBase.__new__(cls, *args, **({} if device is None else {"device": device}), **named)
    return torch.empty(*args, dtype=torch.uint8, device=device).untyped_storage()


def _resize(storage, size, original=torch.UntypedStorage.resize_):
    if storage.device.type != "cuda":
        return original(storage, size)
    torch.ops.pretend.resize_storage(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage), size)
    return storage


def _synchronize():
    torch.ops.pretend.synchronize()


def _broadcast_coalesced(tensors, devices, _buffer_size):
    return [[tensor.detach().to(_device(index)) for tensor in tensors] for index in devices]


def _scatter(tensor, devices, sizes, dim, _streams):
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
    return [part.to(_device(index)) for index, part in zip(devices, parts, strict=False)]


def _gather(tensors, dim, destination):
    return torch.cat([tensor.to(_device(destination)) for tensor in tensors], dim)


def put_into(torch):
    """Put everything in place, once, in a torch that was just imported."""
    torch.ops.load_library(os.environ["PRETENDED_GPUS_BUILD"] + "/libdevice.so")
    device = torch.ops.pretend
    device.set_device_count(COUNT)
    for index in range(COUNT):
        device.limit_memory(index, CARD_BYTES)
    missing = {
        "getDeviceCount": lambda: COUNT,
        "init": _init,
        "setDevice": lambda index: device.exchange_device(index) and None,
        "getDevice": device.device,
        "exchangeDevice": device.exchange_device,
        "maybeExchangeDevice": device.exchange_device,
        "getCurrentRawStream": device.stream,
        "isInBadFork": lambda: False,
        "getArchFlags": lambda: "sm_90",
        "synchronize": _synchronize,
        "memoryStats": _memory_stats,
        "resetPeakMemoryStats": device.forget_peak,
        "emptyCache": lambda: None,
    }
    for name, function in missing.items():
        setattr(torch._C, f"_cuda_{name}", function)
    for function in (_broadcast_coalesced, _scatter, _gather):
        setattr(torch._C, function.__name__, function)
    cuda = torch.cuda
    cuda._cudart = object()
    cuda.is_current_stream_capturing = lambda: False
    cuda._exchange_device = cuda._maybe_exchange_device = device.exchange_device
    cuda.get_device_properties = lambda device=None: Properties
    cuda.get_device_name = lambda device=None: Properties.name
    cuda.get_device_capability = lambda device=None: (Properties.major, Properties.minor)
    cuda.mem_get_info = lambda device=None: torch.ops.pretend.memory_left(_index(device))
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.Stream, cuda.Event = Stream, Event
    cuda.stream, cuda.current_stream, cuda.default_stream = stream, current_stream, default_stream
    for module in (cuda, cuda.random):
        module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state
    cuda.nccl.version = lambda: (2, 28, 3)
    torch.UntypedStorage.__new__, torch.UntypedStorage.resize_ = _new_storage, _resize
    torch.version.cuda = "13.0"
    torch._pretended_norm = pretended_norm.put_into(torch)
