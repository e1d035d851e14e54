"""The package's old name stands nowhere but in a closed list. No constant that feeds a hash or a stream's key has a name in it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLD = "lock" + "step"  # so that this file has it nowhere either
EXCEPTIONS = {
    "benchmarks/gpu/2026-11-27-1-nvidia-h200.json": "what commands printed before",
    "benchmarks/gpu/2026-11-27-1-nvidia-h200-again.json": "what commands printed before",
    "benchmarks/gpu/2026-11-27-1-nvidia-h200-libraries.json": "what commands printed before",
    "CHANGELOG.md": "one line that says what the name was",
}


def test_the_old_name_stands_nowhere_but_in_the_exceptions():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    texts = {str(path.relative_to(ROOT)): path.read_bytes().lower() for path in files if path.is_file()}
    found = {name for name, text in texts.items() if OLD.encode() in text}
    assert found == EXCEPTIONS.keys()
    assert [name for name in texts if OLD in name.lower()] == []
    assert texts["CHANGELOG.md"].count(OLD.encode()) == 1
