"""Every script that the documentation shows and that trains loses each of its ranks once: undisturbed bits, from its step."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from samebits.protocol.journal.ring import JournalReader
from tests.support.environment import ROOT
from tests.support.launching import LIMIT_S, Finished, Running, start, write_script

pytestmark = pytest.mark.ranks

RANKS = 2
FILES: dict[str, tuple[str, ...]] = {
    "examples/digits.py": ("--epochs", "3"),
    "examples/gpt.py": ("--steps", "12", "--test-every", "6"),
    "examples/quickstart.py": (),
    "examples/migration/after.py": (),
    **{f"examples/recipes/{file.name}": () for file in sorted((ROOT / "examples/recipes").glob("*.py"))},
    "examples/came_from/number_of_processes_samebits.py": (),
    "examples/notes/ddp_with_sampler_samebits.py": (),
    "examples/notes/digits_with_steplr.py": ("--epochs", "2"),
    "examples/notes/pipelined_network_samebits.py": (),
    "examples/notes/save_and_load_samebits.py": (),
    "examples/notes/toy_model_samebits.py": (),
}
"""With their arguments."""
OPTIONS = {
    "examples/notes/pipelined_network_samebits.py": ("--strategy", "pipeline"),
    "examples/notes/toy_model_samebits.py": ("--strategy", "model_parallel"),
}
NOT_KILLED = {
    "examples/came_from/middle_of_an_epoch_samebits.py": "it takes four steps, and its page stops it",
    "examples/came_from/same_order_samebits.py": "it takes six steps",
    "examples/came_from/uneven_batches_samebits.py": "it takes four steps",
    "examples/came_from/unused_parameters_samebits.py": "it takes four steps",
    "examples/notes/data_parallel_shapes.py": "dp is one rank",
    "examples/notes/hogwild_samebits.py": "hogwild has other bits each time",
    "examples/notes/seeds.py": "its two steps only print",
    "examples/notes/spawn_samebits.py": "it starts its ranks itself",
}
FRAGMENTS = {
    ("docs/guide/between-lanes.md", "run.state.weight = 1.0"): "shows what comes behind lanes",
    ("docs/guide/between-lanes.md", "hidden = run.per_lane("): "shows what a lane hands on to itself",
    ("docs/guide/loop.md", "for step in run.steps(loader, epochs=10)"): "shows the short form of the loop",
    ("docs/guide/save.md", "model, optimizer, scheduler, loader = run.prepare("): "shows where states are saved",
    ("docs/guide/save.md", "average = AveragedModel("): "shows what a state holds",
}
"""Blocks of pages that are no scripts, by their first words."""
GIVEN = {
    "docs/guide/loop.md": """
import torch
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 4)
train_set = torch.utils.data.TensorDataset(torch.randn(1024, 16), torch.randint(4, (1024,)))
""",
    "docs/design/code-in-an-hour.md": """
import torch, samebits
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_set = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
loader = torch.utils.data.DataLoader(train_set, batch_size=16)
def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
""",
}
"""What whole scripts of a page leave to the reader."""
FROM_A_SNAPSHOT = {
    "examples/recipes/carried_state.py": "run.lane_sum is a second exchange, behind the pass",
    "examples/recipes/ema_teacher.py": "run.lane_sum is a second exchange, behind the update",
    "examples/recipes/image_pool.py": "run.per_lane is a second exchange, behind the pass",
    "examples/recipes/replay_buffer.py": "run.per_lane and run.lane_cat are more exchanges, behind the pass",
    "examples/recipes/contrastive.py": "a loss of the whole batch takes two passes over the lanes, and the second is no beginning",
    "examples/recipes/closures.py": "its optimizer calls the pass again, and a pass after an update is no beginning",
    "examples/notes/pipelined_network_samebits.py": "no rank of a pipeline has the whole state",
    "examples/notes/toy_model_samebits.py": "no rank has the whole state",
}
"""Those that may also go on from a step further back, or from the beginning where none was kept yet, and why."""


STEPS_AGAIN = 2
"""One, or two where the rank dies just after an exchange."""


def blocks() -> list[tuple[str, str, str]]:
    """Page, the file that it quotes, and text of every block of Python that trains."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for file, text in re.findall(
            r"^(?:<!-- from (\S+) -->\n)?```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            if "run.steps" in text or "run.prepare" in text:
                found.append((page.relative_to(ROOT).as_posix(), file, text))
    return found


def whole_blocks() -> dict[str, str]:
    """Blocks that are scripts and stand in no file, by a name."""
    files = "".join((ROOT / file).read_text() for file in FILES)
    return {page: text for page, _, text in blocks() if "samebits.init(" in text and text not in files}


SCRIPTS = [*FILES, *whole_blocks()]


def test_every_example_and_every_block_that_trains_is_killed_or_has_its_reason() -> None:
    examples = [file for file in (ROOT / "examples").rglob("*.py") if re.search(r"\brun\.steps\(", file.read_text())]
    assert {file.relative_to(ROOT).as_posix() for file in examples} - NOT_KILLED.keys() == FILES.keys()
    for page, file, text in blocks():
        is_known = file in FILES or "samebits.init(" in text
        assert is_known or any(page == one and text.startswith(words) for one, words in FRAGMENTS), (page, text)


def run(place: Path, script: str) -> Running:
    place.mkdir(exist_ok=True)
    options = ("-n", str(RANKS), "--threads", "1", *OPTIONS.get(script, ()))
    if script in FILES:
        return start(place, *options, str(ROOT / script), *FILES[script])
    text = whole_blocks()[script]
    for module in re.findall(r"^from (transformers) import", text, re.MULTILINE):
        pytest.importorskip(module)
    return start(place, *options, write_script(place, GIVEN.get(script, "") + text))


def bits_of(finished: Finished) -> str:
    assert "resumed   without" not in finished.err, f"nothing may be named: {finished.err}"
    return finished.bits


def kill_at(running: Running, rank: int, step: int) -> int:
    """Kill a rank as soon as its journal shows this step or a later one; return that step.

    The journal is looked at as often as it can be: a step of these takes a few milliseconds.
    """
    until = time.monotonic() + LIMIT_S
    while running.process.poll() is None and time.monotonic() < until:
        for file in running.place.glob(f"samebits-runs/*/journal/rank-{rank:05d}.ring"):
            with suppress(OSError, ValueError):
                journal = JournalReader(file)
                last = journal.last()
                if last is not None and last.step is not None and last.step >= step:
                    os.kill(journal.pid, signal.SIGKILL)
                    return last.step
        time.sleep(0.001)
    raise AssertionError(f"rank {rank} never came to step {step}:\n{running.err}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """Of each script that was asked for: its bits, and the number of its steps."""
    return {}


@pytest.mark.thorough
@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_killed_rank_costs_a_step(
    tmp_path: Path, undisturbed: dict[str, tuple[str, int]], script: str, rank: int
) -> None:
    if script not in undisturbed:
        finished = run(tmp_path / "undisturbed", script).finish()
        steps = re.search(r"(\d+) steps in", finished.err)
        assert steps is not None, finished.err
        undisturbed[script] = bits_of(finished), int(steps[1])
    bits, steps = undisturbed[script]
    running = run(tmp_path / "killed", script)
    try:
        kill_at(running, rank, max(2, steps // 3))
    finally:
        finished = running.finish()
    assert "was killed by signal 9" in finished.err
    assert bits_of(finished) == bits
    if script not in FROM_A_SNAPSHOT:
        assert finished.folder is not None
        [told] = [json.loads(line) for line in (finished.folder / "restarts.jsonl").read_text().splitlines()]
        assert told["in_memory"], finished.err
        assert told["steps_again"] <= STEPS_AGAIN, finished.err
