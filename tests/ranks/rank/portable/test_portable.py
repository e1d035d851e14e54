"""numerics="portable" on real ranks: one hash under every exact strategy, after a kill, and as a plain script; mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script, write_script
from tests.support.portable import needs_portable
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, needs_portable]

TRAIN = """
    import os, signal, torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=3, lanes=4, numerics="portable")
    x, y = torch.randn(96, 1, 10, 10), torch.randint(0, 3, (96,))
    front = nn.Sequential(nn.Conv2d(1, 6, 3), nn.GELU(), nn.Dropout(0.1), nn.Flatten())
    model = nn.Sequential(front, nn.Linear(384, 48), nn.LayerNorm(48), nn.Tanh(), nn.Linear(48, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            if step.number == 8 and "KILLS" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
    run.print("loss", float(step.loss).hex())
"""


def loss(ended: Finished) -> str:
    assert ended.code == 0, ended.err
    (found,) = re.findall(r"loss (\S+)", ended.out)
    return str(found)


@promise(
    "on-every-x86-64-cpu",
    "Every exact strategy, on every number of ranks and after a kill, has the bits of one rank",
)
def test_the_bits_are_those_of_every_strategy(tmp_path: Path) -> None:
    one = run_script(tmp_path, TRAIN, "-n", "1")
    assert re.search(
        r"bits +\w+ +on any x86-64 with AVX2 \(torch 2\.\d+\.\d+, 4 lanes, 1 thread\)\n",
        one.err,
    )
    for options in (("-n", "2"), ("-n", "2", "--strategy", "zero1"), ("-n", "2", "--mesh", "pipeline=2")):
        assert loss(run_script(tmp_path, TRAIN, *options)) == loss(one)
    assert loss(run_script(tmp_path, TRAIN, "-n", "2", env={"KILLS": "1"})) == loss(one)
    # The session's own OPENBLAS_NUM_THREADS hid that ranks lost theirs.
    words = [sys.executable, "-m", "samebits", "run", "-n", "1", "script.py"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    users = subprocess.run(words, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert loss(one) in users.stdout, users.stderr
    unheld = run_script(tmp_path, TRAIN, "-n", "1", "--numerics", "exact")
    assert loss(unheld) != loss(one), "the CPU's own kernels have other bits, or this test says nothing"


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("--strategy", "zero1"), ("--mesh", "pipeline=2"), ("--precision", "bf16-mixed")])
def test_killed_or_resumed_the_bits_are_those_of_one_rank(tmp_path: Path, options: tuple[str, ...]) -> None:
    precision = options if "--precision" in options else ()
    one = run_script(tmp_path, TRAIN, "-n", "1", *precision)
    killed = run_script(tmp_path, TRAIN, "-n", "2", *options, env={"KILLS": "1"})
    assert "SIGKILL" in killed.err
    assert loss(killed) == loss(one)
    saves = ("--name", "mine", "--save-every", "3steps")
    stopped = TRAIN.replace(
        "optimizer.zero_grad()", "optimizer.zero_grad()\n            if step.number == 7: raise SystemExit(7)"
    )
    assert run_script(tmp_path, stopped, "-n", "2", *options, *saves).code == 7
    resumed = run_script(tmp_path, TRAIN, "-n", "1", *precision, *saves)
    assert "resume" in resumed.err
    assert loss(resumed) == loss(one)


@pytest.mark.thorough
def test_a_plain_script_starts_itself_again_once(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAIN)
    launched = run_script(tmp_path, TRAIN, "-n", "1")
    alone = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stderr.count("the script starts again with it") == 1
    assert loss(launched) in alone.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--precision", "16-mixed"), "is shown for float32, float64 and bfloat16, not for 16-mixed"),
        (("--allow", "cumsum"), 'but numerics is "portable", which allows no operator to differ'),
    ],
)
def test_what_cannot_be_portable_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    ended = run_script(tmp_path, TRAIN, "-n", "1", "--numerics", "portable", *options)
    assert ended.code == 2
    assert says in ended.err
    assert not [*tmp_path.glob("samebits-runs/*/logs")]


@pytest.mark.thorough
def test_a_word_that_only_the_running_script_knows_is_named_with_the_fix(tmp_path: Path) -> None:
    text = TRAIN.replace('numerics="portable"', 'numerics="port" + "able"')
    ended = run_script(tmp_path, text, "-n", "1")
    assert ended.code == 2
    assert "must be known before torch is loaded (script.py:7)" in ended.err
    assert loss(run_script(tmp_path, text, "-n", "1", "--numerics", "portable"))


@pytest.mark.thorough
def test_lstm_stays_out_of_onednn_and_numpy_below_avx512(tmp_path: Path) -> None:
    text = """
        import json, torch, numpy as np, samebits
        run = samebits.init(numerics="portable")
        before = torch.backends.mkldnn.enabled
        with torch.profiler.profile() as profile:
            torch.nn.LSTM(4, 5)(torch.ones(3, 2, 4))
        names = {event.name for event in profile.events()}
        features = np._core._multiarray_umath.__cpu_features__
        print(json.dumps([sorted(name for name in names if "mkldnn" in name), before, torch.backends.mkldnn.enabled,
                          [key for key in ("AVX512_SKX", "X86_V4", "AVX512_ICL") if features.get(key)]]))
    """
    ended = run_script(tmp_path, text, "-n", "1")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1]) == [[], True, True, []]


@pytest.mark.thorough
def test_what_others_preload_stays_behind_ours(tmp_path: Path) -> None:
    text = """
        import os, samebits
        run = samebits.init(numerics="portable")
        print("preloads", [os.path.basename(path) for path in os.environ["LD_PRELOAD"].split(":")])
    """
    (library,) = Path("/lib").glob("x86_64-linux-gnu/libm.so.6") or [None]
    ended = run_script(tmp_path, text, "-n", "1", env={**os.environ, "LD_PRELOAD": str(library)})
    assert "preloads ['_portable.so', 'libm.so.6']" in ended.out, ended.err


@pytest.mark.thorough
def test_a_script_without_samebits_is_told_that_nothing_was_checked(tmp_path: Path) -> None:
    ended = run_script(tmp_path, "import torch", "-n", "1", "--numerics", "portable")
    assert ended.code == 0
    assert "numerics  nothing was checked: the script calls no samebits.init" in ended.err


@pytest.mark.thorough
def test_two_threads_are_as_portable_with_bits_of_their_own(tmp_path: Path) -> None:
    one, two = (run_script(tmp_path, TRAIN, "-n", "1", "--threads", number) for number in ("1", "2"))
    assert "4 lanes, 2 threads)" in two.err
    assert loss(one)
    assert loss(two)


WORKERS = """
    import multiprocessing, torch, samebits
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            torch.manual_seed(index)
            return nn.LSTM(30, 30)(torch.randn(1, 1, 30))[0].detach().flatten()

    if __name__ == "__main__":
        run = samebits.init(numerics="portable")
        model = nn.Linear(30, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(Samples(), batch_size=4, num_workers=1, multiprocessing_context="METHOD")
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        for step in run.steps(loader):
            step.backward(lambda batch: model(batch).pow(2).mean())
            optimizer.step()
        run.print("loss", float(step.loss).hex())
"""


@pytest.mark.thorough
def test_workers_that_are_fresh_interpreters_compute_with_the_same_kernels(tmp_path: Path) -> None:
    forked, spawned = (
        run_script(tmp_path, WORKERS.replace("METHOD", method), "-n", "1") for method in ("fork", "spawn")
    )
    assert loss(spawned) == loss(forked)


@pytest.mark.thorough
def test_a_state_with_the_bits_of_one_cpu_is_not_resumed(tmp_path: Path) -> None:
    options = ("-n", "1", "--name", "mine", "--save-every", "2steps", "--threads", "1")
    assert run_script(tmp_path, TRAIN, *options, "--numerics", "exact").code == 0
    longer = TRAIN.replace("run.epochs(2)", "run.epochs(3)")
    ended = run_script(tmp_path, longer, *options)
    assert ended.code == 2
    assert "was written by a run whose bits depend on the CPU" in ended.err


@pytest.mark.thorough
def test_a_word_in_a_branch_that_is_not_taken_is_said(tmp_path: Path) -> None:
    text = TRAIN.replace(
        'samebits.init(seed=3, lanes=4, numerics="portable")',
        'samebits.init(seed=3, lanes=4, numerics="portable") if "NEVER" in os.environ else samebits.init(seed=3, lanes=4)',
    )
    ended = run_script(tmp_path, text, "-n", "1")
    assert "the script chose other numerics" in ended.err
    assert "any x86-64" not in ended.err


@pytest.mark.thorough
def test_a_variable_that_the_script_changes_is_named(tmp_path: Path) -> None:
    text = TRAIN.replace("import samebits", "import samebits; os.environ['NPY_DISABLE_CPU_FEATURES'] = ''")
    ended = run_script(tmp_path, text, "-n", "1")
    assert ended.code == 2
    assert "NPY_DISABLE_CPU_FEATURES changed in the script" in ended.err
