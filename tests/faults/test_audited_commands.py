"""What the processes of each command unpickle, execute and connect to, as an audit hook in all of them sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import samebits
from tests.support.launching import start_python, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

AUDITED = Path(__file__).parents[1] / "support" / "audited"
SOURCE = Path(samebits.__file__).parent
SCRIPT = """
    import samebits, torch
    run = samebits.init(lanes=2, seed=0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.ones(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers={workers})
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            for x, y in step:
                run.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    run.save_state("saved")
    run.save_weights(model, "net.safetensors")
    samebits.load_weights(model, "net.safetensors")
"""
SPAWNED = """
    import samebits
    def task(rank):
        samebits.init(lanes=2)
    if __name__ == "__main__":
        samebits.spawn(task, nprocs=2)
"""


@dataclass(frozen=True)
class Event:
    """What the hook wrote (tests/support/audited)."""

    event: str
    what: list[str]
    files: list[str]
    pid: int

    def comes_from(self, *parts: str) -> bool:
        return any(part in file for file in self.files for part in parts)


@dataclass
class Audit:
    """Commands in one folder, all of whose processes are watched."""

    place: Path

    def run(self, *words: str, code: int = 0) -> list[Event]:
        """The events of one command."""
        log = self.place / "events"
        log.unlink(missing_ok=True)
        variables = {"PYTHONPATH": f"{AUDITED}:{SOURCE.parent}", "SAMEBITS_TEST_AUDIT": str(log)}
        ended = start_python(self.place, *words, env=variables).finish()
        assert ended.code == code, ended.err + ended.out
        events = [Event(**told) for told in self._told(log)]
        assert {event.event for event in events} >= {"exec"}, "the hook was there"
        return events

    def _told(self, log: Path) -> Iterator[dict[str, Any]]:
        for line in log.read_text().splitlines():
            yield json.loads(line)


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


def unpickled(events: list[Event], *allowed: str) -> list[Event]:
    """What was unpickled outside of functions in these files."""
    return [
        event for event in events if event.event.startswith(("pickle", "marshal")) and not event.comes_from(*allowed)
    ]


def of_the_internet(events: list[Event]) -> list[tuple[str, str]]:
    """Each address of another family than AF_UNIX that was bound or connected to."""
    calls = ("socket.bind", "socket.connect", "socket.sendto", "socket.gethostbyname")
    return [(event.event, event.what[0]) for event in events if event.event in calls and event.what[0].startswith("(")]


def executed(events: list[Event], place: Path) -> set[str]:
    """The files below `place` whose code was executed."""
    texts = (event.what[0][1:-1] for event in events if event.event == "exec")
    return {str(Path(text).relative_to(place)) for text in texts if Path(text).is_relative_to(place)}


@promise(
    "shut",
    "`run`, `checkpoint`, `diagnose`, `watch`, `verify` and `bench` unpickle and execute nothing from a "
    "file or a socket; ranks only what their own loader workers send, and the function of "
    "`samebits.spawn`",
    also=[
        "test_verify_and_bench_unpickle_nothing",
        "test_a_run_that_goes_on_reads_its_state_without_unpickling",
        "test_ranks_unpickle_what_their_own_loader_workers_send",
        "test_ranks_unpickle_the_function_of_a_spawn",
    ],
)
@pytest.mark.thorough
def test_a_run_and_the_commands_that_read_its_folder(audit: Audit) -> None:
    write_script(audit.place, SCRIPT.format(workers=0))
    first = audit.run("-m", "samebits", "run", "-n", "2", "--name", "exp1", "--save-every", "1steps", "script.py")
    assert unpickled(first) == []
    assert set(of_the_internet(first)) == {("socket.bind", "('127.0.0.1', 0)")}, (
        "MASTER_PORT, which is kept and not served"
    )
    assert executed(first, audit.place) == {"script.py"}
    for words in (
        *(("checkpoint", *rest) for rest in (["ls"], ["show", "saved"], ["verify", "exp1"], ["diff", "saved", "exp1"])),
        ("checkpoint", "export", "exp1", "out.safetensors"),
        *(("diagnose", "exp1"), ("watch", "exp1")),
    ):
        events = audit.run("-m", "samebits", *words)
        assert unpickled(events) == []
        assert [event for event in events if event.event.startswith("socket")] == []
        assert executed(events, audit.place) == set()


@pytest.mark.thorough
def test_a_run_that_goes_on_reads_its_state_without_unpickling(audit: Audit) -> None:
    write_script(audit.place, SCRIPT.format(workers=0))
    words = ("-m", "samebits", "run", "-n", "2", "--name", "exp1", "--save-every", "1steps", "script.py")
    audit.run(*words)
    again = audit.run(*words)
    assert unpickled(again) == []
    assert executed(again, audit.place) == {"script.py"}


@pytest.mark.thorough
def test_ranks_unpickle_what_their_own_loader_workers_send(audit: Audit) -> None:
    write_script(audit.place, SCRIPT.format(workers=1))
    events = audit.run("-m", "samebits", "run", "-n", "2", "script.py")
    assert unpickled(events, "multiprocessing/queues.py") == []
    assert unpickled(events) != [], "that of torch.multiprocessing"
    assert set(of_the_internet(events)) == {("socket.bind", "('127.0.0.1', 0)")}


@pytest.mark.thorough
def test_ranks_unpickle_the_function_of_a_spawn(audit: Audit) -> None:
    write_script(audit.place, SPAWNED)
    events = audit.run("script.py")
    assert unpickled(events, "rank/start/script_main.py") == []
    assert unpickled(events) != []
    assert set(of_the_internet(events)) == {("socket.bind", "('127.0.0.1', 0)")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words", [("verify", "--ranks", "1,2", "--steps", "2"), ("bench", "--ranks", "2", "--rounds", "1", "--steps", "1")]
)
def test_verify_and_bench_unpickle_nothing(audit: Audit, words: tuple[str, ...]) -> None:
    write_script(audit.place, SCRIPT.format(workers=0))
    events = audit.run("-m", "samebits", *words, "script.py")
    assert unpickled(events) == []
    assert set(of_the_internet(events)) == {("socket.bind", "('127.0.0.1', 0)")}


@pytest.mark.thorough
def test_the_doctor_connects_to_nobody(audit: Audit) -> None:
    events = audit.run("-m", "samebits", "doctor")
    assert unpickled(events) == []
    assert of_the_internet(events) == []


def test_the_hook_sees_what_it_looks_for(audit: Audit) -> None:
    write_script(
        audit.place,
        """
        import marshal, pickle, socket
        pickle.loads(pickle.dumps(socket.socket))
        marshal.loads(marshal.dumps(1))
        with socket.socket() as end:
            end.bind(("127.0.0.1", 0))
        """,
    )
    events = audit.run("script.py")
    assert {event.event for event in unpickled(events)} == {"pickle.find_class", "marshal.loads"}
    assert of_the_internet(events) == [("socket.bind", "('127.0.0.1', 0)")]
    assert executed(events, audit.place) == {"script.py"}
