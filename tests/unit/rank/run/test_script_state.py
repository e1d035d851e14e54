"""What a script keeps itself is named, whatever way it keeps it; what every state holds is not."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import samebits
from samebits.rank.checks.script import script_state
from samebits.rank.checks.script.script_state import named_in
from samebits.rank.checks.variables import Named
from samebits.rank.run.loop import training
from samebits.rank.run.run_state import RunState
from tests.scripts.idioms import NAMED, SAVED, script

EXAMPLES = Path(__file__).parents[4] / "examples"


class Seen(BaseException):
    """The first step was reached."""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[Named]]]:
    """Runs a script up to its first step, in this process."""
    frames = script_state.script_frames
    found: list[Named] = []

    def label(run: RunState) -> None:
        found.extend(named_in(run.loop_state))
        raise Seen

    def run(source: str) -> list[Named]:
        file = tmp_path / "train.py"
        file.write_text(source)
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setattr(sys, "argv", [str(file)])
        with pytest.raises(Seen):
            exec(compile(source, str(file), "exec"), vars(module))
        return found

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "label", label)
    monkeypatch.setattr(
        script_state,
        "script_frames",
        lambda: [one for one in frames() if one.f_code.co_filename.startswith(str(tmp_path))],
    )
    gc.freeze()  # `samebits.init` looks at all objects, and a test session has millions
    yield run
    samebits.finish()
    gc.unfreeze()


@pytest.mark.parametrize("idiom", NAMED)
@pytest.mark.filterwarnings("ignore")
def test_what_no_state_holds_is_named(idiom: str, names: Callable[[str], list[Named]]) -> None:
    assert names(script(*NAMED[idiom]))


@pytest.mark.parametrize("idiom", SAVED)
@pytest.mark.filterwarnings("ignore")
def test_what_every_state_holds_is_not_named(idiom: str, names: Callable[[str], list[Named]]) -> None:
    assert names(script(*SAVED[idiom])) == []


@pytest.mark.parametrize("example", ["quickstart.py", "digits.py", "recipes/mixup.py", "recipes/averaged_weights.py"])
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_the_examples_is_named(example: str, names: Callable[[str], list[Named]]) -> None:
    pytest.importorskip("sklearn")
    assert names((EXAMPLES / example).read_text()) == []


LOOP = script("{before}", "{turn}").replace("for step in run.steps(loader)", "{loop}").replace("factor * ", "")


@pytest.mark.parametrize(
    ("loop", "turn", "named"),
    [
        ("for n, step in enumerate(run.steps(loader))", "if n > 3: break", "enumerate"),
        ("for n, step in enumerate(run.steps(loader))", "print(n)", ""),
        ("for step, n in zip(run.steps(loader), range(99))", "pass", "zip"),
        ("for step in itertools.islice(run.steps(loader), 9)", "pass", "islice"),
        ("for step in run.steps(loader)", "pass", ""),
    ],
)
def test_what_counts_steps_from_outside_is_named(
    loop: str, turn: str, named: str, names: Callable[[str], list[Named]]
) -> None:
    found = names(LOOP.format(before="", turn=turn, loop=loop))
    assert [one.kind for one in found] == (["counted"] if named else [])
    assert named in "".join(one.name for one in found)


def test_a_name_has_its_line_and_what_to_write(names: Callable[[str], list[Named]]) -> None:
    source = script("scale = 1.0", "factor = scale\n        scale = 0.9 * scale")
    [one] = names(source)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "scale = 0.9" in text)
    assert (one.name, one.where) == ("scale", f"train.py:{line}")
    assert "run.state" in one.sentence()
