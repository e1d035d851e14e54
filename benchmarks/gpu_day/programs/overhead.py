"""A step of samebits beside the bare loop's, in turn in one process: `overhead.py MODEL LANES PRECISION [--quick]`.

Three sides: samebits, whose batches come from a loader; the bare loop from a loader (G1); the bare loop over a batch that
lies on the device (G2). samebits comes first, so that its switches (deterministic kernels) hold for all. Waits of a step are
counted by torch.cuda.set_sync_debug_mode, with the lines that they come from; kernels and the GPU's busy time by
torch.profiler, functions of Python by cProfile, all after the timing.
"""

import cProfile
import json
import pstats
import statistics
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import samebits
from benchmarks.gpu_day.programs.models import MODELS, loss_of, whole

G1, G2 = 1.01, 1.02
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
ROUND_S, LEAST_STEPS, MOST_STEPS = 0.5, 3, 200
"""About how long each side runs in each of the rounds."""
ROUNDS, WARM_UP, PROFILED = 6, 4, 2
WORKERS = {"resnet50": 4}
BUSIEST = 25


def loader_of(name, data, batch, quick, **how):
    workers = 0 if quick else WORKERS.get(name, 0)
    return DataLoader(
        data, batch, shuffle=True, drop_last=True, collate_fn=whole, num_workers=workers, persistent_workers=workers > 0, **how
    )  # fmt: skip


def ours(name, made, lanes, precision, quick):
    run = samebits.init(seed=0, lanes=lanes, threads=1, precision=precision)
    model, data, batch = made
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(name, data, batch, quick))
    while True:
        for step in run.steps(loader):
            for samples, labels in step:
                run.backward(loss_of(model, samples, labels))
            optimizer.step()
            optimizer.zero_grad()
            yield


def batches(name, data, batch, streamed, quick):
    if not streamed:
        ready = data.inputs[:batch].cuda(), data.labels[:batch].cuda()
        while True:
            yield ready
    loader = loader_of(name, data, batch, quick, pin_memory=True)
    while True:
        for pair in loader:
            yield [tensor.cuda(non_blocking=True) for tensor in pair]


def bare(name, made, lanes, precision, streamed, quick):
    model, data, batch = made
    model.cuda()
    optimizer, dtype = torch.optim.AdamW(model.parameters(), 1e-4), DTYPES.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "16-mixed")
    for pair in batches(name, data, batch, streamed, quick):
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
    """Of a step: kernels (copies too), and milliseconds in which at least one of them ran."""
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(number):
                next(steps)
            torch.cuda.synchronize()
        events = [one.time_range for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    except (RuntimeError, AttributeError, AssertionError) as error:
        return {"failed": str(error)[:200]}
    return {"kernels": len(events) / number, "busy_ms": covered((one.start, one.end) for one in events) / number / 1e3}


def covered(spans):
    """The length of what at least one span covers."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def busiest(steps, number):
    """The functions of Python in which most of a step passes: microseconds and calls of each."""
    seen = cProfile.Profile()
    seen.enable()
    for _ in range(number):
        next(steps)
    seen.disable()
    rows = sorted(pstats.Stats(seen).stats.items(), key=lambda row: -row[1][2])
    return {
        f"{'/'.join(Path(file).parts[-2:])}:{line} {function}": [round(own / number * 1e6, 1), calls / number]
        for (file, line, function), (_, calls, own, *_) in rows[:BUSIEST]
    }


def main():
    name, lanes, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    quick = "--quick" in sys.argv
    make = MODELS[name]
    began = time.perf_counter()
    sides = {
        "samebits": ours(name, make(quick), lanes, precision, quick),
        "bare": bare(name, make(quick), lanes, precision, True, quick),
        "bare, batch on the device": bare(name, make(quick), lanes, precision, False, quick),
    }
    for side in sides.values():
        timed(side, WARM_UP)
    slowest = max(timed(side, 2)[0] for side in sides.values())
    steps = 2 if quick else min(max(round(ROUND_S / slowest), LEAST_STEPS), MOST_STEPS)
    made_s = time.perf_counter() - began
    turns = [{name: timed(side, steps) for name, side in sides.items()} for _ in range(2 if quick else ROUNDS)]
    middle = {name: statistics.median(turn[name][0] for turn in turns) for name in sides}
    python = {name: statistics.median(turn[name][1] for turn in turns) for name in sides}
    ratio, streamed = (
        statistics.median(turn["samebits"][0] / turn[other][0] for turn in turns) for other in list(sides)[1:]
    )
    counted = {name: waits(side) for name, side in sides.items()}
    timed_s = time.perf_counter() - began - made_s
    seen = {} if quick else {name: profiled(side) for name, side in sides.items()}
    calls = {} if quick else {name: busiest(side, steps) for name, side in [*sides.items()][:2]}
    total = {name: None if lines is None else sum(lines.values()) for name, lines in counted.items()}
    told = "waits not counted" if total["samebits"] is None else f"waits {total['samebits']} ({total['bare']} bare)"
    says = (
        f"{middle['samebits'] * 1e3:.2f} ms; {ratio:.3f} x the bare step, {streamed:.3f} x with its batch on the device; "
        f"Python {python['samebits'] * 1e3:.2f} ({python['bare'] * 1e3:.2f} bare); {told}"
    )
    missed = ratio > G1 or streamed > G2
    figures = {
        "seconds": middle, "python_seconds": python, "ratio": ratio, "ratio_batch_on_device": streamed,
        "waits": counted, "profile": seen, "busiest": calls, "memory_bytes": torch.cuda.max_memory_allocated(),
        "steps": steps, "made_s": made_s, "timed_s": timed_s, "turns": turns,
    }  # fmt: skip
    print(json.dumps({"missed": missed, "says": says, **figures}))


if __name__ == "__main__":
    main()
