"""What `samebits checkpoint` finds at URLs, and what it refuses before it goes there."""

import signal
import sys
from pathlib import Path

import pytest

from samebits.cli.main import main
from samebits.errors import UsageError
from samebits.launcher.states.places import states_at_url


@pytest.mark.parametrize("text", ["{}", '{"name": "an application"}', "[" * 100_000, "\0"])
def test_a_manifest_of_somebody_else_is_no_state(tmp_path: Path, text: str) -> None:
    (there := tmp_path / "there").mkdir()
    (there / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"^There is no state at file://.*/there\."):
        states_at_url(f"file://{there}", tmp_path / "room")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "memory://bucket/exp1"), "memory://bucket/exp1 lives in the process that wrote it, not here."),
        (("ls", "memory://"), "memory:// lives in the process that wrote it, not here."),
        (("export", "exp1", "s3://b/net.safetensors"), "FILE must be a path, but is s3://b/net.safetensors."),
        (("export", "exp1", "s3:/b/net.pt"), "'s3:/b/net.pt' is neither a path nor a URL"),
    ],
)
def test_urls_that_cannot_work_here_are_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["samebits", "checkpoint", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, [line[:6] for line in err.splitlines()]) == (2, "", ["error:", "help: "])
    assert err.startswith(f"error: {said}")


def test_a_signal_removes_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM and a closed terminal would otherwise end Python where it is."""
    seen: list[list[str]] = []

    def interrupted(_url: str, room: Path) -> None:
        seen.append([path.name for path in room.parent.glob("samebits-copy-*")])
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("samebits.cli.start_checkpoint.states_at_url", interrupted)
    monkeypatch.setattr(sys, "argv", ["samebits", "checkpoint", "ls", f"file://{tmp_path}"])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 128 + signal.SIGTERM
    assert [len(names) for names in seen] == [1]
    assert list(tmp_path.iterdir()) == []
