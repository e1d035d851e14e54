"""The command line answers without torch, accepts torchrun's options, and refuses in one sentence."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from samebits.cli.run import RunHelp, run
from tests.support.command_line import Answers, answers
from tests.support.launching import start

SEPARATORS = ("-", "_")


def samebits(place: Path, *arguments: str, torch: bool = True) -> subprocess.CompletedProcess[str]:
    block = "" if torch else "sys.modules['torch'] = None; "
    code = f"import sys; {block}from samebits.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("run", "--help")])
def test_help_needs_no_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    began = time.monotonic()
    answered = samebits(tmp_path, *arguments, torch=False)
    print(f"samebits {' '.join(arguments)}: {time.monotonic() - began:.3f} s")
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip()


def test_the_help_shows_every_command_and_an_example(tmp_path: Path) -> None:
    shown = samebits(tmp_path, "--help").stdout
    assert "  run " in shown
    assert "  verify " in shown
    assert "samebits run -n 4 train.py" in shown


def test_the_help_of_run_shows_twelve_options_and_all_of_them_when_asked(tmp_path: Path) -> None:
    short, whole = (samebits(tmp_path, "run", word).stdout for word in ("--help", "--help-all"))
    options = [line.split()[0] for line in short.splitlines() if line.startswith("  -")]
    assert len(options) == 12 + len(["--help", "--help-all"])
    assert "--grace" not in short
    visible = [option for option in run.params if isinstance(option, click.Option) and not option.hidden]
    for option in visible:
        assert any(line.lstrip().startswith(tuple(option.opts)) for line in whole.splitlines()), option.name
    named = [name for names in RunHelp.groups.values() for name in names]
    assert sorted(named) == sorted(option.name or "" for option in visible), "each is in one group"


def test_a_script_of_almost_that_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert (
        "There is no script trian.py.\nhelp: Did you mean train.py?\n" in samebits(tmp_path, "run", "trian.py").stderr
    )


MISTAKES = [
    (("train.py", "--lr", "0.1"), "`samebits train.py` names no command. Write `samebits run train.py --lr 0.1`."),
    (("rnu", "train.py"), "samebits has no command `rnu`. Write `samebits run train.py`."),
    (("-n", "2", "train.py"), "-n needs a command before it. Write `samebits run -n 2 train.py`."),
    (("nonsense",), "No such command 'nonsense'"),
    (("run",), "Missing argument 'SCRIPT'. See `samebits run --help`."),
    (("run", "--lane", "3", "x.py"), "No such option '--lane'"),
    (
        ("run", "--resume", "x.py"),
        "No such option --resume: a run with --name resumes by itself. Start it with --name and",
    ),
    (("run", "missing.py"), "There is no script missing.py. Check the path."),
    (("run", "json"), "There is no script json. Put -m before a module: samebits run -m json."),
    (("run", "."), ". is a folder. Give the script in it, or -m for a package."),
    (("run", "/dev/null"), "/dev/null is a device, not a script that every rank can read. Write it to a file."),
    (("run", "x" * 300), f"{'x' * 300} cannot be read: File name too long. Check the path."),
    (("run", "-m", "x" * 300), f"{'x' * 300} cannot be read: File name too long. Check the path."),
    (("run", "e\x1b[2J\nx.py"), r"There is no script e\x1b[2J"),
    (("run", "--log-dir", "x.py", "x.py"), "No run folder can be created in x.py: Not a directory."),
    (("run", "-m", "no_such_module"), "There is no module no_such_module here."),
    (("run", "-n", "0", "x.py"), "-n must be at least 1, but is 0. Start with -n 1, or -n auto."),
    (("run", "-n", "many", "x.py"), "-n must be a number of ranks or `auto`, but is 'many'."),
    (
        ("run", "-n", "4", "--lanes", "2", "x.py"),
        "`lanes` must be at least the number of ranks, but is 2 with 4 ranks.",
    ),
    (("run", "--threads", "0", "x.py"), "--threads must be at least 1, but is 0."),
    (("run", "--threads", "x", "x.py"), "Invalid value for '--threads'"),
    (("run", "-n", "2", "--nproc-per-node", "2", "x.py"), "-n and --nproc-per-node are the same option."),
    (("run", "--nnodes=1:4:2", "x.py"), "--nnodes must be a number of nodes or MIN:MAX, but is 1:4:2."),
    (("run", "--node_rank", "1", "x.py"), "--node-rank 1 is for several nodes, and there is one."),
    (("run", "--no-python", "x.py"), "--no-python starts programs that are not Python"),
    (("PET_NO_PYTHON=1", "run", "x.py"), "--no-python starts programs that are not Python"),
    (("PET_NNODES=0", "run", "x.py"), "PET_NNODES must be a number of nodes or MIN:MAX, but is 0."),
    (("PET_NNODES=2", "run", "--rdzv-endpoint", "h", "x.py"), "--rdzv-endpoint h has no port."),
    (("PET_NPROC_PER_NODE=0", "run", "x.py"), "-n must be at least 1, but is 0."),
    (("run", "--logs-specs", "mine", "x.py"), "--logs-specs mine asks for a torchrun log plugin"),
    (("run", "--virtual_local_rank", "x.py"), "--virtual-local-rank hides the other GPUs"),
    (("run", "-q", "-v", "x.py"), "-q and -v contradict each other."),
    (("run", "--name", "a/b", "x.py"), "--name must be a folder's name without a slash"),
    (("run", "--save-every", "5", "--name", "exp1", "x.py"), "--save-every '5' cannot be read. Write 500steps"),
    (("run", "--save-every", "0steps", "--name", "exp1", "x.py"), "--save-every '0steps' cannot be read."),
    (("run", "--save-every=-3min", "--name", "exp1", "x.py"), "--save-every '-3min' cannot be read."),
    (("run", "--save-every", "5steps", "x.py"), "--save-every needs a name under which the next start finds"),
    (("run", "--save-every", "5steps", "--name", "../x", "x.py"), "--name must be a folder's name"),
    (("run", "--save-every", "1h", "--log-dir", "x.py", "--name", "a", "x.py"), "The run folder x.py/a cannot be"),
    (("run", "--save-every", "5steps", "--name", "exp1", "--keep", "0", "x.py"), "--keep must be at least 1"),
    (("run", "--keep", "2", "x.py"), "--keep is about the states of --save-every."),
    (("run", "--states", "s3://a/b", "x.py"), "--states is about the states of --save-every."),
    (
        ("run", "--save-every", "1h", "--name", "a", "--states", "tos://a/b", "x.py"),
        "tos:// needs the package tosfs,",
    ),
    (("run", "--grace", "-1", "x.py"), "--grace must be a number of seconds, but is -1."),
    (("run", "--max-restarts", "-1", "x.py"), "--max-restarts must be at least 0, but is -1."),
    (("run", "--max_restarts", "x", "x.py"), "Invalid value for '--max-restarts'"),
    (("PET_MAX_RESTARTS=-2", "run", "x.py"), "--max-restarts must be at least 0, but is -2."),
    (("run", "--recover", "foo", "x.py"), "Invalid value for '--recover'"),
    (
        ("run", "-n", "4", "--shrink", "--mesh", "pipeline=2,ddp=2", "x.py"),
        "--shrink cannot take a rank out of mesh pipeline=2,ddp=2.",
    ),
    (
        ("run", "--shrink", "--strategy", "dp", "x.py"),
        "--shrink needs ranks, but dp is one",
    ),
    (("run", "--snapshots", "0steps", "x.py"), "--snapshots '0steps' cannot be read."),
    (("audit", "x.py", "exp1"), "x.py does not stand where it belongs."),
    (("audit", "exp1", "--epochs", "5"), "--epochs does not stand where it belongs."),
    (("walk",), "No such command 'walk'."),
]


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory,
) -> Answers:
    return answers(tmp_path_factory.mktemp("mistakes"), [words for words, _ in MISTAKES])


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_a_mistake_is_a_problem_and_a_fix_and_starts_nothing(
    refusals: Answers, words: tuple[str, ...], sentence: str
) -> None:
    refused, left = refusals[words]
    assert refused.returncode == 2
    problem, fix = refused.stderr.splitlines()
    assert problem.startswith("error: ")
    assert fix.startswith("help: ")
    assert f"{problem[7:]} {fix[6:]}".startswith(sentence)
    assert refused.stdout == ""
    assert left == ["x.py"]


@pytest.mark.ranks
@pytest.mark.parametrize("separator", SEPARATORS)
def test_torchruns_options_are_accepted_and_named_once(tmp_path: Path, separator: str) -> None:
    (tmp_path / "x.py").write_text("import sys; print(sys.argv[1:])")
    with_value = (
        *("rdzv-backend=c10d", "rdzv-endpoint=localhost:0", "rdzv-id=7", "rdzv-conf=a=b", "max-restarts=3"),
        *("monitor-interval=1", "start-method=spawn", "event-log-handler=null", "role=trainer", "node-rank=0"),
        *("master-addr=localhost", "master-port=29500", "local-addr=localhost", "logs-specs=default"),
        *("numa-binding=node", "signals-to-handle=SIGTERM", "shutdown-timeout=9", "local-ranks-filter=0"),
        *("duplicate-stdout-filters=a", "duplicate-stderr-filters=b", "redirects=3", "tee=3", "nnodes=1:1"),
        *("nproc-per-node=1", f"log-dir={tmp_path / 'logs'}"),
    )
    names = [text.partition("=")[0].replace("-", separator) + "=" + text.partition("=")[2] for text in with_value]
    switches = [f"--{name}".replace("-", separator).replace(separator * 2, "--") for name in ("standalone", "run-path")]
    options = [*(f"--{name}" for name in names), *switches]
    ended = start(tmp_path, *options, "x.py", "-n", "5", "--lanes", "script's own").finish()
    assert ended.code == 0, ended.err
    assert ended.out == "['-n', '5', '--lanes', \"script's own\"]\n"
    named = next(line for line in ended.err.splitlines() if line.startswith("note      without effect on one node: "))
    assert named.count("--") == 22
    assert len(list((tmp_path / "logs").iterdir())) == 1


@pytest.mark.ranks
def test_quiet_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('only this')")
    ended = start(tmp_path, "-q", "-n", "1", "--start-method=spawn", "x.py").finish()
    assert (ended.code, ended.out, ended.err) == (0, "only this\n", "")


def test_more_ranks_than_the_scripts_lanes_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import samebits\nrun = samebits.init(lanes=2)\n")
    refused = samebits(tmp_path, "run", "-n", "3", "x.py")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: `lanes` must be at least the number of ranks, but is 2 with 3 ranks.\n"
        "help: Start with -n 2, or set lanes=3.\n"
    )
    assert not (tmp_path / "samebits-runs").exists()
