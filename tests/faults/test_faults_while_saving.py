"""A save that is killed at any system call, or whose disk fails, leaves a complete state; and so does a cut of the power."""

from collections import Counter
from functools import cache

import pytest

from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.crashing_runs import cut_runs, failing_runs, killed_runs, lost_writers
from tests.scripts.crashing_saves import ERRORS, failing_saves, killed_saves, power_cuts
from tests.scripts.crashing_uploads import FULL, faulty_copies
from tests.support.system_calls import refusal

SCENES = ("replace", "renames", "first")
"""A state is there already; so it is, on a file system that cannot exchange two folders; nothing is there."""
pytestmark = [pytest.mark.ranks, pytest.mark.compiles]  # thorough ones take a minute or two


@cache
def why_not() -> str:
    return refusal()


@pytest.fixture(autouse=True)
def _traced():
    if why_not():
        pytest.skip(why_not())


def once(function, *args):
    return run_ranks(function, Started(1, timeout_s=2000.0), *args)[0]


def state_with(folder, model, documents):
    """A folder that is a state as far as its manifest goes."""
    files = {"model.safetensors": model, "state.json": documents}
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    saved = {name: SavedFile.of(content) for name, content in files.items()}
    (folder / NAME).write_bytes(Manifest(saved, {"step": 2}).encode())
    return folder


def sample_and(*more):
    return [pytest.param(*one, marks=pytest.mark.thorough) for one in more]


@pytest.mark.parametrize(
    ("kind", "every", "stride"), [("replace", False, 3), *sample_and(*((k, True, 1) for k in SCENES))]
)
def test_a_kill_at_any_system_call_of_a_save_leaves_the_older_or_the_newer_state(tmp_path, kind, every, stride):
    kills, newer, wrong = once(killed_saves, str(tmp_path), kind, every, stride)
    print(f"{kills} kills, after {newer} of them the newer state was loaded")
    assert wrong == []
    assert 0 < newer < kills
    assert kills > (100 if every else 8)


@pytest.mark.parametrize(
    ("kind", "images"), [("nested", 6), *sample_and(*((kind, 200) for kind in (*SCENES, "nested")))]
)
def test_a_cut_of_the_power_leaves_the_older_or_the_newer_state_and_the_newer_once_a_save_has_returned(
    tmp_path, kind, images
):
    found, wrong = once(power_cuts, str(tmp_path), kind, images)
    print(f"{images} images: {found}")
    assert wrong == []


@pytest.mark.parametrize(
    ("kind", "trouble", "stays", "stride"),
    [
        ("replace", "full", True, 9),
        *sample_and(
            *((kind, trouble, stays, 1) for kind in SCENES for trouble in ERRORS for stays in (False, True)),
            *((kind, "gone", False, 1) for kind in SCENES),
        ),
    ],
)
def test_a_disk_that_fails_is_said_by_that_save_and_the_next_one_works(tmp_path, kind, trouble, stays, stride):
    faults, wrong = once(failing_saves, str(tmp_path), kind, trouble, stays, stride)
    print(f"{faults} faults")
    assert wrong == []


@pytest.mark.parametrize(
    ("after", "victim", "strides"),
    [
        (2, "run", {"writing": 90}),
        *sample_and(
            (2, "run", {"writing": 1, "starting": 90}),
            (5, "run", {"writing": 4}),
            (0, "run", {"writing": 3}),
            (2, "rank", {"writing": 3}),
            (2, "rank", {"rank": 9}),
        ),
    ],
)
def test_a_run_that_is_killed_while_it_saves_by_itself_goes_on_with_the_same_bits(tmp_path, after, victim, strides):
    kills, firsts, wrong = once(killed_runs, str(tmp_path), after, victim, strides)
    print(f"{kills} kills, then the first steps were {Counter(firsts)}")
    assert wrong == []
    assert kills > 1


@pytest.mark.parametrize(
    ("after", "strides"), [(2, {"writing": 160}), *sample_and((2, {"writing": 1, "starting": 90}), (5, {"writing": 4}))]
)
def test_a_run_goes_on_and_saves_the_next_step_when_the_process_that_writes_is_killed(tmp_path, after, strides):
    kills, told, wrong = once(lost_writers, str(tmp_path), after, strides)
    print(f"{kills} kills, {told} of them told")
    assert wrong == []
    assert told


@pytest.mark.parametrize(("after", "images"), sample_and((2, 120), (5, 30), (0, 90)))
def test_a_cut_of_the_power_while_a_run_saves_by_itself_leaves_what_goes_on_with_the_same_bits(tmp_path, after, images):
    found, wrong = once(cut_runs, str(tmp_path), after, images)
    print(f"{images} images, then the first steps were {found}")
    assert wrong == []


@pytest.mark.parametrize(
    ("trouble", "stays", "stride"),
    [
        ("full", True, 20),
        *sample_and(*((trouble, stays, 1) for trouble in ("full", "broken") for stays in (False, True))),
        *sample_and(("read-only", True, 3), ("forbidden", True, 3)),
    ],
)
def test_a_run_whose_disk_fails_while_it_saves_by_itself_says_so_goes_on_and_saves_the_next_step(
    tmp_path, trouble, stays, stride
):
    faults, told, wrong = once(failing_runs, str(tmp_path), 2, trouble, stays, stride)
    print(f"{faults} faults, {told} of them told")
    assert wrong == []


@pytest.mark.parametrize("error", [None, *sample_and((FULL,))])
def test_a_copy_to_a_url_that_is_killed_or_fails_at_any_call_leaves_the_older_or_the_newer_state(tmp_path, error):
    faults, wrong = once(faulty_copies, str(tmp_path), state_with, error)
    print(f"{faults} faults")
    assert wrong == []
    assert faults > 10
