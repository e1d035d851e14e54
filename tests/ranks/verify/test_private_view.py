"""Runs of `verify` and `bench` leave the user's files alone; each begins with the same ones; ranks see each other's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.bench.bench import Runners, measure
from samebits.bench.plan import Amount, Bench
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import Files, Program, Trials
from samebits.verify.verify import Proof, verify
from tests.scripts.verifying import nursery
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery"]

SCRIPT = """
import os
import sys
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
if run.is_main:
    with open("train.log", "a") as log:
        log.write("a run\\n")
    lines = open("train.log").readlines()
    assert lines == ["before\\n", "a run\\n"], lines
    os.remove("old.txt")
    os.makedirs("out", exist_ok=True)
    os.replace("new.txt", "out/new.txt")
    with open(sys.argv[1], "w") as file:
        file.write("changed")
    torch.save({"rank": 0}, "best.pt")
    open("/dev/shm/" + sys.argv[2], "a").close()
run.barrier()
assert torch.load("best.pt") == {"rank": 0}
assert not os.path.exists("old.txt") and open("out/new.txt").read() == "new"
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(40, 6)
loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=20, num_workers=1)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(3):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
run.save_weights(model, "weights.safetensors")
"""
AS_USER = ("unshare", "-Ur", "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
WITHOUT_VIEWS = """
echo 0 > /proc/sys/user/max_user_namespaces || exit 9
exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin "$@"
"""
"""Inside a user namespace of its own: a system that makes no more of them, and gives no right to mount."""


class Home:
    """A folder with the files of a user, and one outside it."""

    def __init__(self, folder: Path) -> None:
        self.here, self.outside = folder / "project", folder / "elsewhere" / "out.txt"
        self.temporary, self.shared = folder / "tmp", f"seen-by-all-{os.getpid()}-{folder.name}"
        for path in (self.here, self.outside.parent, self.temporary):
            path.mkdir()
        for name, text in (("train.log", "before\n"), ("old.txt", "old"), ("new.txt", "new"), ("best.pt", "the best")):
            (self.here / name).write_text(text)
        (self.here / "train.py").write_text(SCRIPT)
        self.outside.write_text("mine")
        self.before = self.state()

    @property
    def args(self) -> tuple[str, str]:
        return str(self.outside), self.shared

    def state(self) -> dict[str, tuple[bytes, int]]:
        files = [path for path in self.here.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    def verify(self, *around: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "samebits", "verify", "--ranks", "1,2", "--steps", "2", "train.py", *self.args]
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        return subprocess.run(
            [*around, *command], cwd=self.here, env=environment, capture_output=True, text=True, timeout=100
        )

    def close(self) -> bool:
        """Remove what a run left in shared memory, which is real; return whether there was anything."""
        file = Path("/dev/shm") / self.shared
        there = file.exists()
        file.unlink(missing_ok=True)
        return there


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    # A short name: sockets of loader workers are in TMPDIR, and their names may have 107 bytes.
    home = Home(tmp_path_factory.mktemp("v"))
    yield home
    home.close()


def can(*command: str) -> bool:
    return subprocess.run([*command, "true"], capture_output=True).returncode == 0


@promise(
    "what-verify-proves",
    "`verify` and `bench` leave the user's files as they are, and each run begins with them, without root too",
    also=["test_a_bench_has_views_too_and_in_place_has_none"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("around", [(), AS_USER], ids=["root", "user"])
def test_verify_leaves_the_files_of_its_user_as_they_are_and_each_run_begins_with_them(
    home: Home, around: tuple[str, ...]
) -> None:
    if not can(*(around or ("unshare", "-m"))):
        pytest.skip("this system gives no private views")
    ended = home.verify(*around)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no private views" not in ended.stderr
    assert home.state() == home.before
    assert home.outside.read_text() == "mine"
    assert home.close(), "shared memory is the real one"
    assert list(home.temporary.glob("samebits-*")) == []
    assert "samebits-verify-" not in Path("/proc/self/mountinfo").read_text(errors="replace"), (
        "nothing of a view is left"
    )


@promise(
    "what-verify-proves",
    "Where the system gives no private view, runs work in copies, and what that does not keep apart is said first",
)
@pytest.mark.thorough
@pytest.mark.skipif(not can("unshare", "-Ur", "-m"), reason="this system gives no user namespaces to try without them")
def test_without_views_the_runs_work_in_copies_and_what_that_does_not_keep_apart_is_said_before(home: Home) -> None:
    with (home.here / "large.bin").open("wb") as file:
        file.truncate(300 << 20)
    ended = home.verify("unshare", "-Ur", "sh", "-c", WITHOUT_VIEWS, "sh")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (home.here / "large.bin").unlink()
    assert home.state() == home.before
    assert home.outside.read_text() == "changed"
    home.close()
    first = ended.stderr.splitlines()[0]
    assert first.startswith("note: This system has no private views of files (")
    assert "Too large to copy, only linked: large.bin." in first
    assert "Writes there or outside this folder are real." in first
    assert list(home.temporary.glob("samebits-*")) == []


@pytest.mark.skipif(not can("unshare", "-m"), reason="this system gives no private views")
@pytest.mark.thorough
def test_a_bench_has_views_too_and_in_place_has_none(
    home: Home, nursery: NurseryHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.here)
    program = Program(Path("train.py"), None, home.args, threads=1, device="cpu")
    with Trials(program, lambda *_: None, nursery, purpose="bench") as trials:
        bench = Bench(program, ("single", "ddp"), (2,), None, Amount(2, 1, warm_up=1), cores=1)
        results = measure(bench, Runners(trials, None))
        assert not [one.failed for one in results.measured if one.failed], results
        trials.remove()
    assert home.state() == home.before
    with Trials(program, lambda *_: None, nursery, files=Files(in_place=True)) as trials:
        result = verify(Proof(program, (1, 2), None, 1), trials)
        trials.remove()
    assert result.failed is not None, "the second run finds what the first one has written"
    assert "'a run\\n', 'a run\\n'" in result.failed.text
    assert home.outside.read_text() == "changed"
    home.close()
