"""The package's old name stands nowhere but in a closed list. No constant that feeds a hash or a stream's key has a name in it."""

import re
import subprocess
from pathlib import Path

from samebits.protocol.installation import RELEASED, to_install

ROOT = Path(__file__).parents[2]
OLD = "lock" + "step"  # so that this file has it nowhere either
EXCEPTIONS = {"CHANGELOG.md": "one line that says what the name was"}


def test_the_old_name_stands_nowhere_but_in_the_exceptions():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    texts = {str(path.relative_to(ROOT)): path.read_bytes().lower() for path in files if path.is_file()}
    found = {name for name, text in texts.items() if OLD.encode() in text}
    assert found == EXCEPTIONS.keys()
    assert [name for name in texts if OLD in name.lower()] == []
    assert texts["CHANGELOG.md"].count(OLD.encode()) == 1


def test_nothing_says_to_install_our_name_from_an_index_that_does_not_have_it():
    said = re.compile(r"pip3? install\s+(-\S+\s+)*['\"]?samebits\b(?!/)", re.IGNORECASE)
    texts = [
        path
        for folder in ("src", "docs", "examples", "benchmarks", "shipping", ".github")
        for path in (ROOT / folder).rglob("*")
    ]
    texts = [
        path
        for path in [*texts, *ROOT.glob("*.*")]
        if path.suffix in {".py", ".md", ".txt", ".toml", ".yml", ".js", ".html"}
    ]
    if not RELEASED:
        assert [str(path) for path in texts if said.search(path.read_text())] == []
        assert to_install("plot") == 'pip install ".[plot]" in a clone of samebits'
