"""What the script and the command line say about states, put together; and what can name a run."""

import re
from pathlib import Path

import pytest

from samebits.errors import UsageError
from samebits.protocol.run_folder import RunFolder, runs_folder
from samebits.protocol.saving import SaidInScript, Saving, check_name, claim, let_go

TOLD = Saving("/runs/exp1/states", "5steps")


def test_the_script_says_where_and_how_often() -> None:
    here = str(Path("samebits-runs/a/states").absolute())
    assert SaidInScript().saving(None, {}) is None
    assert SaidInScript("a", "epoch").saving(None, {}) == Saving(here, "epoch", 3)
    assert SaidInScript("a", "1h", 2, "file:///runs").saving(None, {}) == Saving(here, "1h", 2, "file:///runs/a")


def test_the_command_line_beats_the_script_option_by_option() -> None:
    """`samebits run --save-every` alone must not switch off the copies that the script asks for."""
    said = SaidInScript("a", "epoch", 5, "file:///runs")
    assert said.saving(TOLD, {}) == Saving(TOLD.folder, "5steps", 5, "file:///runs/exp1")
    more = Saving(TOLD.folder, "5steps", 2, "s3://bucket/runs/exp1")
    assert said.saving(more, {}) == more
    assert SaidInScript(states="file:///runs").saving(TOLD, {}) == Saving(TOLD.folder, "5steps", 3, "file:///runs/exp1")
    assert (TOLD.kept, more.kept) == (3, 2)


def test_the_variable_for_all_run_folders_counts_for_the_script_too() -> None:
    said = SaidInScript("a", "epoch").saving(None, {"SAMEBITS_RUNS": "/data/runs"})
    assert said == Saving("/data/runs/a/states", "epoch", 3)
    assert [runs_folder({}), runs_folder({"SAMEBITS_RUNS": ""})] == [Path("samebits-runs")] * 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (SaidInScript("a", 500), "save_every=500 cannot be read. Write 500steps, 10min or epoch."),
        (SaidInScript("a", True), "save_every=True cannot be read."),
        (SaidInScript("a", "9" * 400 + "h"), "save_every='999"),
        (SaidInScript("a", "9" * 5000 + "steps"), "save_every='999"),
        (SaidInScript(5, "1h"), "name= must be a folder's name without a slash, a control character or a dot in front"),
        (SaidInScript(Path("a"), "1h"), "name= must be a folder's name"),
        (SaidInScript("a", "1h", True), "`keep` must be a whole number of at least 1, but is True."),
        (SaidInScript("a", "1h", 3, 5), "states= must be a URL, but is 5."),
        (SaidInScript("a", "1h", 3, Path("s3://b")), "'s3:/b' is neither a path nor a URL"),
        (SaidInScript(states="s3://b"), "states= is about the states of save_every=."),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_what_cannot_be_is_a_sentence(said: SaidInScript, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        said.saving(None, {})


@pytest.mark.parametrize("keep", [0, "3"])
def test_a_mistake_of_the_script_is_told_where_the_command_line_says_more(keep: object) -> None:
    with pytest.raises(UsageError, match="`keep` must be a whole number"):
        SaidInScript(keep=keep).saving(TOLD, {})


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/", "x\n", " ", ".lock", None, "x" * 201, "é" * 101])
def test_what_cannot_name_a_run_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match=r"^--name (must be a folder's name|is longer than 200 bytes)"):
        check_name(name)


def test_a_name_may_be_long_and_in_any_language() -> None:
    for name in ("x" * 200, "é" * 100, "第一", "exp 1", "-", "a.b"):
        check_name(name)


def test_what_another_name_would_not_mend_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, fix in (
        (tmp_path / "file", "Choose another name."),
        (tmp_path / "file" / "exp1", "Check the folders above it, their permissions and the disk."),
    ):
        with pytest.raises(UsageError, match=f"cannot be used: .*{re.escape(fix)}$"):
            claim(place)
    let_go()


def test_the_run_folder_of_one_start_is_not_taken_for_states(tmp_path: Path) -> None:
    RunFolder(tmp_path).plan.write_text("{}")
    with pytest.raises(UsageError, match="or give --name only together with --save-every"):
        claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
