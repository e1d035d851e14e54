"""A step of lockstep beside the bare loop's, in turn in one process: `overhead.py MODEL LANES PRECISION [--quick]`.

Three sides: lockstep, whose batches come from a loader; the bare loop from a loader (G1); the bare loop over a batch that
lies on the device (G2). lockstep comes first, so that its switches (deterministic kernels) hold for all. Waits of a step are
counted by torch.cuda.set_sync_debug_mode, with the lines that they come from; kernels and the GPU's busy time by
torch.profiler.
"""

import json
import statistics
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import lockstep
from benchmarks.gpu_day.programs.models import MODELS, loss_of

G1, G2 = 1.01, 1.02
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
STEPS = {"mlp": 100, "resnet50": 20, "gpt": 8}
ROUNDS, WARM_UP, PROFILED = 6, 4, 3
WORKERS = 4


def loader_of(data, batch, **how):
    return DataLoader(data, batch, shuffle=True, drop_last=True, **how)


def workers(quick):
    return {} if quick else {"num_workers": WORKERS, "persistent_workers": True}


def ours(made, lanes, precision, quick):
    run = lockstep.init(seed=0, lanes=lanes, threads=1, precision=precision)
    model, data, batch = made
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(data, batch, **workers(quick)))
    while True:
        for step in run.steps(loader):
            for samples, labels in step:
                run.backward(loss_of(model, samples, labels))
            optimizer.step()
            optimizer.zero_grad()
            yield


def batches(data, batch, streamed, quick):
    if not streamed:
        ready = data.inputs[:batch].cuda(), data.labels[:batch].cuda()
        while True:
            yield ready
    loader = loader_of(data, batch, pin_memory=True, **workers(quick))
    while True:
        for pair in loader:
            yield [tensor.cuda(non_blocking=True) for tensor in pair]


def bare(made, lanes, precision, streamed, quick):
    model, data, batch = made
    model.cuda()
    optimizer, dtype = torch.optim.AdamW(model.parameters(), 1e-4), DTYPES.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "16-mixed")
    for pair in batches(data, batch, streamed, quick):
        for samples, labels in zip(*(tensor.chunk(lanes) for tensor in pair), strict=True):
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = loss_of(model, samples, labels) / lanes
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield


def timed(steps, number):
    """Seconds of a step: of the clock, and of this process's Python."""
    torch.cuda.synchronize()
    began, busy = time.perf_counter(), time.thread_time()
    for _ in range(number):
        next(steps)
    busy = time.thread_time() - busy
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / number, busy / number


def waits(steps):
    """How often a step waits for its device, by line of code; None where torch cannot tell."""
    if not hasattr(torch._C, "_cuda_set_sync_debug_mode"):
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        next(steps)
    torch.cuda.set_sync_debug_mode("default")
    found = [one for one in seen if "synchroniz" in str(one.message)]
    return Counter(f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno}" for one in found)


def profiled(steps, number=PROFILED):
    """Of a step: kernels (copies too), milliseconds in which the GPU was busy, and what the host called most."""
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(number):
                next(steps)
            torch.cuda.synchronize()
        events = [one for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]
        calls = Counter(one.name for one in seen.events() if one.device_type == torch.autograd.DeviceType.CPU)
        return {
            "kernels": len(events) / number,
            "busy_ms": sum(one.time_range.elapsed_us() for one in events) / number / 1e3,
            "calls": {name: count / number for name, count in calls.most_common(12)},
        }
    except (RuntimeError, AttributeError, AssertionError) as error:
        return {"failed": str(error)[:200]}


def main():
    name, lanes, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    quick = "--quick" in sys.argv
    steps, rounds = (2, 2) if quick else (STEPS[name], ROUNDS)
    make = MODELS[name]
    sides = {
        "lockstep": ours(make(quick), lanes, precision, quick),
        "bare": bare(make(quick), lanes, precision, True, quick),
        "bare, batch on the device": bare(make(quick), lanes, precision, False, quick),
    }
    for side in sides.values():
        timed(side, WARM_UP)
    turns = [{name: timed(side, steps) for name, side in sides.items()} for _ in range(rounds)]
    middle = {name: statistics.median(turn[name][0] for turn in turns) for name in sides}
    python = {name: statistics.median(turn[name][1] for turn in turns) for name in sides}
    ratio, streamed = (
        statistics.median(turn["lockstep"][0] / turn[other][0] for turn in turns) for other in list(sides)[1:]
    )
    counted = {name: waits(side) for name, side in sides.items()}
    seen = {name: profiled(side) for name, side in sides.items()} if not quick else {}
    total = {name: None if lines is None else sum(lines.values()) for name, lines in counted.items()}
    told = "waits not counted" if total["lockstep"] is None else f"waits {total['lockstep']} ({total['bare']} bare)"
    says = (
        f"{middle['lockstep'] * 1e3:.2f} ms; {ratio:.3f} x the bare step, {streamed:.3f} x with its batch on the device; "
        f"Python {python['lockstep'] * 1e3:.2f} ({python['bare'] * 1e3:.2f} bare); {told}"
    )
    missed = ratio > G1 or streamed > G2
    figures = {
        "seconds": middle, "python_seconds": python, "ratio": ratio, "ratio_batch_on_device": streamed,
        "waits": counted, "profile": seen, "memory_bytes": torch.cuda.max_memory_allocated(), "turns": turns,
    }  # fmt: skip
    print(json.dumps({"missed": missed, "says": says, **figures}))


if __name__ == "__main__":
    main()
