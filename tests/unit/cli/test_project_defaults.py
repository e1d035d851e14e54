"""`[tool.samebits]` in pyproject.toml: defaults for the options of `samebits run`."""

import click
import pytest

from samebits.cli.run import run


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")

    def options(table, *words):
        (tmp_path / "pyproject.toml").write_text(table)
        return run.make_context("run", [*words, "train.py", "-q", "--nproc-per-node"]).params

    return options


TABLE = """
[tool.samebits]
ranks = 3
save-every = "500steps"
check_every = "off"
track = ["tensorboard"]
verbose = true
"""


def test_the_nearest_file_gives_defaults_and_the_command_line_beats_them(chosen):
    found = chosen(TABLE, "--save-every", "10steps")
    assert (found["ranks"], found["save_every"], found["check_every"]) == ("3", "10steps", "off")
    assert (found["track"], found["verbose"]) == (("tensorboard",), True)


def test_a_default_gives_way_to_another_option_of_its_kind(chosen):
    found = chosen(TABLE, "--nproc-per-node", "2", "-q")
    assert (found["ranks"], found["nproc_per_node"], found["verbose"], found["quiet"]) == (None, "2", False, True)


def test_a_word_stands_for_a_list_of_one(chosen):
    assert chosen("[tool.samebits]\ntrack = 'wandb'\n")["track"] == ("wandb",)


def test_a_file_without_the_table_changes_nothing(chosen):
    assert chosen("[project]\nname = 'x'\n") == chosen("")


@pytest.mark.parametrize(
    "table",
    [
        "[tool.samebits]\nrank = 3",
        "[tool]\nsamebits = 3",
        "[tool",
        "[tool.samebits]\nlanes = 'x'",
        "[tool.samebits]\nlanes = true",
        "[tool.samebits]\nquiet = 1",
    ],
)
def test_what_is_no_default_is_one_sentence(chosen, table):
    with pytest.raises(click.UsageError):
        chosen(table)
