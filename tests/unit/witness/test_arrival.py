"""The witness begins when torch is imported, however a script comes to it, and wherever and however its process ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.verify.repeat.started import SITE

TRAIN = """
import torch
def train():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
"""
ARRIVALS = {
    "asked for first": f"import importlib.util; assert importlib.util.find_spec('torch')\n{TRAIN}\ntrain()",
    "forked": f"import multiprocessing\n{TRAIN}\nmultiprocessing.get_context('fork').Process(target=train).start()",
}
CUSTOMIZED = {"failing": "raise RuntimeError('a sitecustomize that fails')", "with torch": "import torch"}


IN_THREADS = f"""
import threading
at_once = threading.Barrier(2)
{TRAIN}
def thread():
    one = threading.Thread(target=train)
    one.start()
    return one
"""
AT_ONCE = {
    "two threads": "both = thread(), thread()",
    "the main one too": "one = thread(); train()",
}
IN_TURN = {
    "one after the other": "thread().join(); thread().join(); train()",
    "one behind the main one": "train(); thread().join()",
    "in a thread only": "thread()",
}


def last_of(folder: Path, text: str, *paths: Path, code=0):
    (folder / "train.py").write_text(text)
    environment = {
        **os.environ,
        "SAMEBITS_WITNESS": json.dumps({"folder": str(folder), "steps": 9}),
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, *paths))),
    }
    command = [sys.executable, "train.py"]
    ended = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, timeout=100)
    assert ended.returncode == code, ended.stderr
    [path] = folder.glob("rank-*.jsonl")
    return json.loads(path.read_text().splitlines()[-1])


@pytest.mark.parametrize("how", ARRIVALS)
def test_a_script_is_heard_however_it_comes_to_torch(tmp_path, how):
    assert last_of(tmp_path, ARRIVALS[how]).items() >= {"end": 2, "cut": False}.items()


@pytest.mark.parametrize("how", CUSTOMIZED)
def test_a_sitecustomize_of_the_user_s_own_comes_first(tmp_path, how):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(CUSTOMIZED[how])
    assert last_of(tmp_path, f"{TRAIN}\ntrain()", own)["end"] == 2


@pytest.mark.parametrize("how", IN_TURN)
def test_threads_that_wait_for_each_other_are_as_one(tmp_path, how):
    assert last_of(tmp_path, f"{IN_THREADS}\n{IN_TURN[how]}")["cut"] is False


@pytest.mark.parametrize("how", AT_ONCE)
def test_two_threads_that_train_at_once_are_named(tmp_path, how):
    waits = IN_THREADS.replace("optimizer.step()", "optimizer.step(); at_once.wait()")
    last = last_of(tmp_path, f"{waits}\n{AT_ONCE[how]}", code=1)
    assert len(set(last["threads"])) == 2


@pytest.mark.parametrize("ending", ["os._exit(0)", "threading.Thread(target=os._exit, args=[0]).start()"])
def test_a_script_that_ends_itself_outright_is_heard_to_its_last_step(tmp_path, ending):
    last = last_of(tmp_path, f"import os, threading\n{TRAIN}\ntrain()\n{ending}\nthreading.Event().wait(20)")
    assert last.items() >= {"end": 2, "cut": False, "normal": False}.items()
