"""From the words of `samebits bench` to what it measures; every mistake is one sentence, before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.cli.start_bench import bench_from, check_plot, parse_ranks
from samebits.errors import UsageError

OPTIONS = {
    "ranks": "1,2",
    "quiet": False,
    "strategies": "ddp",
    "lanes": None,
    "precision": None,
    "numerics": None,
    "steps": 10,
    "rounds": 5,
    "threads": 1,
    "device": "cpu",
    "module": False,
    "args": (),
}


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    return str(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strategies": "ddp,magic"}, "There is no strategy 'magic'. Use one of auto, single, ddp"),
        ({"strategies": ""}, "There is no strategy ''"),
        ({"steps": 0}, "--steps must be at least 1, but is 0"),
        ({"rounds": -1}, "--rounds must be at least 1"),
        ({"lanes": 1}, "--lanes 1 is less than 2 ranks"),
        ({"ranks": "1,x"}, "--ranks must be numbers of at least 1"),
        ({"ranks": "0"}, "--ranks must be numbers of at least 1"),
        ({"script": "missing.py"}, "There is no script missing.py"),
        ({"threads": 0}, "--threads must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_way_out(script: str, changed: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bench_from(OPTIONS | {"script": script} | changed)


def test_names_are_those_of_the_strategies_in_any_spelling(script: str) -> None:
    found = bench_from(OPTIONS | {"script": script, "strategies": "PP, DistributedDataParallel,pipeline"})
    assert found.strategies == ("single", "pipeline", "ddp")
    assert parse_ranks("4,1,4") == (4, 1)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("speed.bmp", "Let it end in .png, .svg, .pdf"),
        ("missing/speed.png", "cannot be written. Choose a file in a folder that exists"),
    ],
)
def test_a_picture_that_could_not_be_written_is_refused(tmp_path: Path, path: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_plot(str(tmp_path / path))


def test_a_mistake_ends_the_command_with_2_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samebits", "bench", "missing.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr == "error: There is no script missing.py.\nhelp: Check the path.\n"
    assert ended.stdout == ""


def test_without_matplotlib_a_picture_is_refused_and_nothing_else_needs_it(script: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        assert name != 'torch'\n"
        "        if name.partition('.')[0] == 'matplotlib':\n"
        "            raise ModuleNotFoundError('there is none')\n"
        "        return None\n"
        "sys.meta_path.insert(0, Blocker())\n"
        f"sys.argv = ['samebits', 'bench', '--plot', 'speed.png', {script!r}]\n"
        "from samebits.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert 'matplotlib' not in sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "error: --plot draws with matplotlib, which cannot be imported (there is none).\n"
        'help: Install it: pip install ".[plot]" in a clone of samebits.\n'
    )
