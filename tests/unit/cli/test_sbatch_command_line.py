"""`samebits sbatch` writes a job script that a person can read, and refuses what SLURM would not understand."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.cli.sbatch import JobScript
from samebits.errors import UsageError
from tests.support.command_line import Answers, answers

WHOLE = """#!/bin/bash
#SBATCH --job-name=exp1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1              # one `samebits run` per node; it starts the ranks
#SBATCH --cpus-per-task=8
#SBATCH --time=1-00:00:00
#SBATCH --partition=gpu
#SBATCH --account=abc
#SBATCH --output=exp1-%j.out
#SBATCH --signal=USR1@120              # 120 s before the end: save a state and stop
#SBATCH --requeue
#SBATCH --open-mode=append

srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
  {run} -n 4 --grace 90 --lanes 8 --threads 2 --name exp1 --save-every 500steps --start-method spawn \\
  train.py --lr 0.1 'a b'
code=$?

# 138: stopped by USR1, with a state. The same job resumes from it when its turn comes.
if [ "$code" -eq 138 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def samebits(place: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    (place / "train.py").write_text("raise AssertionError('started')")
    env = {**os.environ, "PATH": path or str(place)}
    command = [sys.executable, "-m", "samebits", "sbatch", *arguments]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)


def test_a_job_script_says_what_was_asked_for(tmp_path: Path) -> None:
    sized = ("--nodes", "2", "--ntasks-per-node", "4", "--time", "1-00:00:00", "--partition", "gpu")
    own = ("--more", "--account=abc", "--signal", "USR1@120", "-o", "job.sh")
    runs = ("--lanes", "8", "--threads", "2", "--name", "exp1", "--save_every", "500steps", "--start-method=spawn")
    done = samebits(tmp_path, *sized, *own, *runs, "train.py", "--lr", "0.1", "a b")
    assert (done.returncode, done.stdout) == (0, "wrote job.sh; submit it with: sbatch job.sh\n"), done.stderr
    text = (tmp_path / "job.sh").read_text()
    assert text == WHOLE.replace("{run}", f"{sys.executable} -m samebits run")
    assert subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=False).returncode == 0


def test_without_options_it_takes_whole_nodes_saves_every_ten_minutes_and_is_called_after_its_job(
    tmp_path: Path,
) -> None:
    assert samebits(tmp_path, "train.py").returncode == 0
    text = (tmp_path / "train.sbatch").read_text()
    assert "#SBATCH --exclusive\n" in text
    assert '--cpus-per-task="$SLURM_CPUS_ON_NODE"' in text
    assert 'samebits run --save-every 10min --grace 60 --name train-"$SLURM_JOB_ID" \\\n  train.py\n' in text
    assert samebits(tmp_path, "--no-requeue", "train.py").returncode == 0  # its own file may be written again
    text = (tmp_path / "train.sbatch").read_text()
    assert text.rstrip().endswith("\n  train.py")
    assert "#SBATCH --no-requeue\n" in text


def test_an_option_that_comes_twice_is_written_twice(tmp_path: Path) -> None:
    trackers = ("--track", "tensorboard", "--track", "wandb")
    for name in ("tensorboard", "wandb"):
        (tmp_path / f"{name}.py").touch()
    done = samebits(tmp_path, *trackers, "train.py")
    assert done.returncode == 0, done.stderr
    assert f" {' '.join(trackers)} " in (tmp_path / "train.sbatch").read_text()


def test_it_submits_only_if_told_to(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "Submitted $1" > submitted\n')
    (tmp_path / "sbatch").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert samebits(tmp_path, "train.py", path=path).returncode == 0
    assert not (tmp_path / "submitted").exists()
    assert samebits(tmp_path, "--submit", "train.py", path=path).returncode == 0
    assert (tmp_path / "submitted").read_text() == "Submitted train.sbatch\n"


MISTAKES = [
    (("nothing.py",), "There is no script nothing.py."),
    (("-n", "2", "--ntasks-per-node", "2", "x.py"), "-n, --nproc-per-node and --ntasks-per-node are the same"),
    (("--signal", "TERM@90", "x.py"), "--signal must be USR1@SECONDS, but is TERM@90."),
    (("--signal", "B:USR1@90", "x.py"), "--signal must be USR1@SECONDS, but is B:USR1@90."),
    (("--time", "soon", "x.py"), "--time soon cannot be read."),
    (("--nodes", "0", "x.py"), "--nodes must be at least 1, but is 0."),
    (("--cores", "0", "x.py"), "--cores must be at least 1, but is 0."),
    (("-o", "nowhere/job.sh", "x.py"), "nowhere/job.sh cannot be written: No such file or directory."),
    (("-n", "two", "x.py"), "-n must be a number of ranks or `auto`, but is 'two'."),
    (("--ntasks-per-node", "0", "x.py"), "-n must be at least 1, but is 0."),
    (("--lanes", "0", "x.py"), "`lanes` must be at least 1, but is 0."),
    (("--threads", "5000", "x.py"), "--threads must be at most 1024, but is 5000."),
    (("--strategy", "none", "x.py"), "There is no strategy 'none'."),
    (("--precision", "8", "x.py"), "There is no precision '8'."),
    (("--name", "", "x.py"), "--name must be a folder's name"),
    (("--save-every", "often", "x.py"), "--save-every 'often' cannot be read."),
    (("--keep", "0", "x.py"), "--keep must be at least 1, but is 0."),
    (("--states", "here", "x.py"), "--states"),
    (("--grace", "nan", "x.py"), "--grace must be a number of seconds, but is nan."),
    (("--max-restarts", "-1", "x.py"), "--max-restarts must be at least 0, but is -1."),
    (("--recover", "off", "--shrink", "x.py"), "--recover off and --shrink contradict each other."),
    (("--track", "paper", "x.py"), "There is no tracker 'paper'."),
    (("--prove", "some", "x.py"), "--prove 'some' is not a number of steps."),
    (("--trace", "some", "x.py"), "--trace 'some' is not a number of steps."),
    (("-q", "-v", "x.py"), "-q and -v contradict each other."),
    (("--partition", "a b", "x.py"), "'a b' cannot stand in a job script."),
    (("--more", "wrap=x\n#SBATCH", "x.py"), "cannot stand in a job script."),
    (("--name", "a/b", "x.py"), "--name must be a folder's name"),
    (("-o", "x.py", "x.py"), "x.py exists, and samebits did not write it."),
    (("--nnodes", "2", "x.py"), "No such option"),
    (("--submit", "x.py"), "There is no sbatch here to submit x.sbatch."),
]


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory,
) -> Answers:
    calls = [("PATH=/nowhere", "sbatch", *words) for words, _ in MISTAKES]
    return answers(tmp_path_factory.mktemp("mistakes"), calls)


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_what_cannot_be_is_a_problem_and_a_fix(refusals: Answers, words: tuple[str, ...], said: str) -> None:
    refused, left = refusals["PATH=/nowhere", "sbatch", *words]
    assert refused.returncode == 2
    problem, fix = refused.stderr.splitlines()
    assert said in problem
    assert fix.startswith("help: ")
    assert left == ["x.py"]


def test_no_value_escapes_its_quotes() -> None:
    evil = '"; rm -rf ~; echo "-$SLURM_JOB_ID'
    for job in (
        JobScript("a", 1, ["samebits", "run", "--log-dir", evil], is_named_by_job=True, program=["x.py"]),
        JobScript("a", 1, ["samebits", "run"], is_named_by_job=True, program=["x.py", "--out", evil]),
    ):
        srun = job.text().partition("srun")[2].partition("code=")[0].replace("\\\n", "")
        assert evil in shlex.split(srun)
        assert "a-$SLURM_JOB_ID" in shlex.split(srun)


def test_a_word_that_would_end_its_line_is_refused() -> None:
    with pytest.raises(UsageError):
        JobScript("a", 1, ["samebits", "run"], is_named_by_job=False, program=["x.py"], partition="a\nrm -rf ~")
