"""Every text that people read stands in one file, `texts.txt`, so that a change of wording is one diff to look at.

Tests elsewhere assert the class, the exit code and one word. `python -m tests.architecture.test_texts` writes the file anew.
"""

from pathlib import Path

from tests.architecture.test_messages import SOURCE, messages

FILE = Path(__file__).with_name("texts.txt")


def texts():
    """The texts of each room, once each, sorted: where a file moves inside its room nothing changes."""
    rooms = {}
    for path in SOURCE.rglob("*.py"):
        *folders, name = path.relative_to(SOURCE).parts
        room = "/".join(folders[:2]) or name
        rooms.setdefault(room, set()).update(said for _, said in messages(path.read_text()) if " " in said.strip())
    for room, said in sorted(rooms.items()):
        if said:
            yield f"\n## {room}\n"
            yield from (" ".join(one.split()) for one in sorted(said))


def test_the_texts_are_those_that_were_looked_at():
    assert FILE.read_text() == written(), "look at the change: python -m tests.architecture.test_texts; git diff"


def written():
    return "\n".join(texts()).lstrip() + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
