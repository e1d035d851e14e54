"""What a run leaves to look at: events, summary, trace and trackers, each value once, through a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samebits.protocol.events import Kind, events_in, of_kind
from tests.support.launching import Finished, run_script

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, torch, samebits
    from pathlib import Path
    from torch.utils.data import DataLoader, TensorDataset

    run = samebits.init(seed=0, lanes=2, threads=1)

    def keep(values, step):
        with Path("kept.jsonl").open("a") as file:
            file.write(f"{step} {sorted(values.items())}\\n")

    run.log_to(keep)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=4))
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward((model(inputs) - labels).square().mean())
            run.log(before=step.number)
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step.number == 8 and run.rank == int(os.environ["DIES"]):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=step.loss)
        run.log(epoch_loss=step.loss)
        seen = run.sum(sum(len(inputs) for inputs, _ in loader))
"""


def shown(place: Path, dies: int) -> Finished:
    options = ("--trace", "3steps", "--track", "tensorboard")
    ended = run_script(place, SCRIPT, "-n", "2", *options, env={"DIES": str(dies)})
    assert ended.code == 0, ended.err
    return ended


def is_nested(trace: list[dict[str, Any]]) -> bool:
    """Whether of any two slices of a track one is inside the other, or behind it, to a nanosecond."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in trace:
        if one["ph"] == "X":
            begin = round(one["ts"] * 1e3)
            tracks.setdefault((one["pid"], one["tid"]), []).append((begin, begin + round(one["dur"] * 1e3)))
    for slices in tracks.values():
        around: list[int] = []
        for begin, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while around and around[-1] <= begin + 1:
                around.pop()
            if around and end > around[-1] + 1:
                return False
            around.append(end)
    return True


@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_run_shows_every_value_once_and_what_happened(tmp_path: Path, dies: int) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ended = shown(tmp_path, dies)
    assert ended.folder is not None
    events = events_in(ended.folder / "events.jsonl")
    assert [event.kind for event in events if event.kind in {Kind.START, Kind.KILL, Kind.RESTART, Kind.END}] == [
        Kind.START,
        Kind.KILL,
        Kind.RESTART,
        Kind.START,
        Kind.END,
    ]
    assert of_kind(events, Kind.KILL)[0].fields["rank"] == dies
    assert [event.step for event in of_kind(events, Kind.EVALUATION)] == [6, 12], "however short they are"
    summary = json.loads((ended.folder / "summary.json").read_text())
    assert (summary["kills"], summary["starts"], summary["steps"]) == (1, 2, 12)
    assert summary["bits"] == ended.bits
    assert set(summary["time"]) == {"0", "1"}

    trace = json.loads((ended.folder / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}
    names = {event["name"] for event in trace if event["ph"] == "X"}
    assert {"lane 0", "exchange", "optimizer"} <= names
    assert any("bucket 0, first" in name for name in names), "what the rank waited for"
    steps = [(event["pid"], event["args"]["step"]) for event in trace if event.get("cat") == "step"]
    # Either it was resumed from the beginning, or from a state; the first steps of both starts are there.
    for rank in (0, 1):
        mine = [step for pid, step in steps if pid == rank]
        assert mine[:3] == [1, 2, 3]
        assert len(mine) == 6
    assert {event["args"]["samples"] for event in trace if event.get("cat") == "step"} == {2}
    assert [event["name"] for event in trace if event["ph"] == "i"] == [f"rank {dies} killed", "restart"]
    assert is_nested(trace)

    wanted = sorted([*[(step, "before") for step in range(1, 13)], *[(step, "loss") for step in range(1, 13)]])
    read = EventAccumulator(str(ended.folder)).Reload()
    assert [event.step for event in read.Scalars("loss")] == list(range(1, 13))
    assert [event.step for event in read.Scalars("before")] == list(range(1, 13))
    assert [event.step for event in read.Scalars("epoch_loss")] == [6, 12]
    (killed,) = read.Tensors("samebits/kill/text_summary")
    assert killed.tensor_proto.string_val[0].startswith(f"rank {dies} was killed".encode())
    assert f"tensorboard --logdir {ended.folder.parent}" in ended.err.replace("samebits-runs", str(ended.folder.parent))
    kept = [line.split(" ", 1) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    given = [(int(step), values[3 : values.index("',")]) for step, values in kept]
    assert sorted(one for one in given if one[1] != "epoch_loss") == wanted
    assert [step for step, _ in given] == sorted(step for step, _ in given)
