"""Whatever changes in the files of a state is found, and the file is named."""

import os
import random
import shutil

import pytest

from samebits.errors import UsageError
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import damage
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.hostile_states import train_and_save

pytestmark = [pytest.mark.ranks, pytest.mark.compiles]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "state"
    run_ranks(train_and_save, Started(1), str(path))
    return path


def said_of(path) -> str:
    """As `run.load_state` and `samebits checkpoint verify` find it."""
    try:
        found = StateFolder(path).read_manifest()
        return "there is none" if found is None else str(damage(*found) or "")
    except UsageError as error:
        return str(error)


def a_bit_of_each_byte(path, chance):
    sizes = [(file, file.stat().st_size) for file in sorted(path.iterdir())]
    return [(file, 8 * byte + chance.randrange(8)) for file, size in sizes for byte in range(size)]


def missed(path, flips):
    """Flip each of these bits alone; those that are not found by the name of their file."""
    assert said_of(path) == ""
    whole, wrong = {file: file.read_bytes() for file in path.iterdir()}, []
    for file, bit in flips:
        data = bytearray(whole[file])
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        if not said_of(path).startswith((f"{file} is damaged", f"{file} names the file")):
            wrong.append((file.name, bit, said_of(path)))
        file.write_bytes(whole[file])
    return wrong


def test_1000_bits_that_flip_are_all_found_and_their_files_named(saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / "state")
    chance, files = random.Random(5), sorted(path.iterdir())
    flips = [(file, chance.randrange(8 * file.stat().st_size)) for _ in range(200) for file in files]
    assert len(flips) >= 1000
    assert missed(path, flips) == []


@pytest.mark.thorough
def test_a_bit_that_flips_in_any_byte_of_a_state_is_found(saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / "state")
    flips = a_bit_of_each_byte(path, random.Random(6))
    print(f"{len(flips)} bits")
    assert missed(path, flips) == []


def test_files_that_are_cut_swapped_lengthened_or_gone_are_found_and_named(saved, tmp_path):
    names, changes = sorted(file.name for file in saved.iterdir()), 0
    for name in names:
        size = (saved / name).stat().st_size
        others = [other for other in names if other != name]
        made = [lambda file, to=to: os.truncate(file, to) for to in (0, 1, size // 2, size - 1, size + 1)]
        made += [lambda file, other=other: shutil.copy(saved / other, file) for other in others]
        made += [lambda file: file.unlink()]
        for change in made:
            path = shutil.copytree(saved, tmp_path / str(changes := changes + 1))
            change(path / name)
            said = said_of(path)
            if name == "manifest.json" and not (path / name).exists():
                assert said.startswith(f"{path} is a folder without manifest.json")
            else:
                assert said.startswith((f"{path / name} is damaged", f"{path / name} cannot be read")), said
    for one in names:
        for other in names[names.index(one) + 1 :]:
            path = shutil.copytree(saved, tmp_path / str(changes := changes + 1))
            (path / one).rename(path / "third")
            (path / other).rename(path / one)
            (path / "third").rename(path / other)
            assert said_of(path).startswith((f"{path / one} is damaged", f"{path / other} is damaged"))
    print(f"{changes} changes")
