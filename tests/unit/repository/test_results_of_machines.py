"""Results of kinds of machines: what tells them apart, what is kept, and how they stand side by side."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.__main__ import as_told  # noqa: E402
from benchmarks.compare import in_common, shares, side_by_side  # noqa: E402
from benchmarks.ending import ends_shortly  # noqa: E402
from benchmarks.keeping import cannot_keep, keep, read  # noqa: E402
from benchmarks.kinds import kind_of, num_listed, this_kind  # noqa: E402
from benchmarks.pictures import blocks, draw_kinds  # noqa: E402
from benchmarks.summary import Aim, compare  # noqa: E402

XEON = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.70GHz\ncpu family\t: 6\nmodel\t: 143\nprocessor\t: 1\n"


def lines(share: float = 0.5) -> list[dict[str, object]]:
    found = compare(Aim("C1", "sum"), ("windows", [2e3, 2e3]), ("Gloo", [8e3, 8e3]), ("copy", [2e3 * share] * 2))
    return [as_told(found), as_told(compare(Aim("C11", "fork"), ("fork", [3e6])))]


def test_two_threads_of_one_core_are_another_kind_than_two_cores() -> None:
    threads, cores = (kind_of(XEON, siblings, "6.8.0-31") for siblings in ("0-1\n", "0\n"))
    assert threads.name == "intel-xeon-6-143-2x2-linux-6.8"
    assert cores.name == "intel-xeon-6-143-2x1-linux-6.8"
    assert threads.said == "2 x Intel Xeon (family 6, model 143, 2 threads of a core each), Linux 6.8"


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-1", 2), ("0,2,5-7\n", 5), ("", 1), ("x", 1), ("1-", 1)])
def test_lists_of_the_kernel_are_counted(text, count) -> None:
    assert num_listed(text) == count


def test_a_machine_that_tells_nothing_is_a_kind_too() -> None:
    assert kind_of("", "", "6.8").num_cpus == 1


def test_a_part_that_is_measured_again_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    path = keep({"transport": lines(), "steps": lines()}, tmp_path)
    assert keep({"transport": lines(0.9)}, tmp_path) == path
    assert path.name == f"{this_kind().name}.json"
    parts = read(path)["parts"]
    assert [part["lines"][0]["reached"] for part in parts.values()] == [0.5, 0.9]
    assert parts["steps"]["lines"][1]["limit"] == ""
    assert "rounds" not in parts["steps"]["lines"][0]
    assert (parts["steps"]["rounds"], parts["steps"]["load"]) == (1, 0.0)
    assert f"torch {parts['steps']['torch']}, 1 rounds, load 0.0" in side_by_side({read(path)["kind"]: parts})
    assert list(tmp_path.iterdir()) == [path]


def test_a_limit_that_was_not_measured_is_none() -> None:
    line = as_told(compare(Aim("C3", "tiny"), ("windows", [2e3]), ("Gloo", [8e3]), ("least work", [])))
    assert (line["limit"], line["limit_amount"]) == ("", 0.0)
    old = {"transport": {"lines": [{**line, "limit": "least work"}]}}
    assert shares(old) == {}, "files that were kept before"


def test_the_picture_has_what_two_kinds_of_machines_have() -> None:
    of_kinds = {"a": {"sum": 0.5, "send": 1.0}, "b": {"sum": 0.9}, "c": {"send": 0.8, "save": 0.7}}
    assert in_common(of_kinds) == {"a": {"sum": 0.5, "send": 1.0}, "b": {"sum": 0.9}, "c": {"send": 0.8}}
    assert in_common({"a": {"sum": 0.5}}) == {"a": {"sum": 0.5}}


def test_what_was_measured_in_the_same_ways_stands_together() -> None:
    shares_of = {
        "a": {"sum, windows": 0.5, "sum, dist": 0.1, "model, 8 layers, ddp": 1.0},
        "b": {"send, windows": 2.0, "send, dist": 1.0},
    }
    assert blocks(shares_of) == {("windows", "dist"): ["sum", "send"], ("ddp",): ["model, 8 layers"]}


def test_kinds_stand_side_by_side_as_shares_of_the_limit(tmp_path: Path) -> None:
    here = read(keep({"transport": lines()}, tmp_path))
    other = kind_of(XEON, "0-1", "6.8")
    told = side_by_side(
        {
            here["kind"]: here["parts"],
            other: {"transport": here["parts"]["transport"], "steps": here["parts"]["transport"]},
        }
    )
    assert len({line.find("|", 2) for line in told.splitlines()}) == 1
    told = re.sub(" +", " ", told)
    assert f"| | {here['kind'].said} | {other.said} |" in told
    assert "| sum, windows | 2.00 µs, 4x, 50% | 2.00 µs, 4x, 50% |" in told
    assert "| sum, windows | | 2.00 µs, 4x, 50% |" in told
    assert "| fork, fork | 3.00 ms | 3.00 ms |" in told
    assert shares(here["parts"]) == {"sum, windows": 0.5}
    assert shares({"steps on one-cpu": here["parts"]["transport"]}) == {"sum on one-cpu, windows": 0.5}
    draw_kinds({"a": {"sum": 0.5}, "b": {"sum": 2.0, "send": 0.9}}, tmp_path / "kinds.png")
    assert (tmp_path / "kinds.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 1, "kind": {}, "parts": {}}', '{"format": 2}'])
def test_another_file_is_refused_in_one_sentence_and_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / f"{this_kind().name}.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no file of results"):
        keep({"transport": lines()}, tmp_path)
    assert cannot_keep(tmp_path).startswith(f"--keep: {path} is no file of results")
    assert path.read_text() == text
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_line_without_its_numbers_is_no_result(tmp_path: Path) -> None:
    path = keep({"transport": lines()}, tmp_path)
    told = json.loads(path.read_text())
    del told["parts"]["transport"]["lines"][0]["limit"]
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="is no file of results"):
        read(path)


def test_the_results_that_are_kept_here_can_be_compared() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "**steps**" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("compare > /dev/full", 1, "The output cannot be written: No space left on device. Write it elsewhere.\n"),
        ("compare | true; exit ${PIPESTATUS[0]}", 1, ""),
        ("compare --picture /nowhere/a.png", 2, "there is no folder /nowhere. Make it, or name another.\n"),
    ],
)
def test_output_that_nobody_can_read_ends_a_command_in_a_sentence_at_most(words: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m benchmarks.{words}"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith(said)
    assert len(done.stderr.splitlines()) == bool(said)


def test_a_command_that_a_person_ends_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    @ends_shortly
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_whether_results_can_be_kept_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    assert not cannot_keep(tmp_path)
    assert not cannot_keep(tmp_path / "new")
    keep({"transport": lines()}, tmp_path)
    assert not cannot_keep(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "where you may not write" in cannot_keep(tmp_path)


def test_an_interrupt_while_a_benchmark_is_still_imported_ends_it_without_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.rpartition("|")[2].strip() == "benchmarks":  # the package; torch comes after it
                process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == -signal.SIGINT, said
    assert "Traceback" not in "".join(said)
