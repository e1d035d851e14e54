"""From what a process printed to a verdict: pure, and never wrong about a process that was cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.gpu_day.outcome import Ended, State, Verdict

Judge = Callable[[Ended], Verdict]

_SUMMARY = re.compile(r"^=*\s*(\d+ (?:passed|failed|skipped|error|xfailed|xpassed|deselected|no tests)\b.*?)\s*=*$")


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def told(ended: Ended) -> dict[str, Any]:
    """The object of JSON in the last line of the output that is one; empty if there is none."""
    for line in reversed(ended.out.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            return found if isinstance(found, dict) else {}
    return {}


def reason(text: str) -> str:
    """The last line, but for what samebits puts under an error: where it was, help, and where the log is."""
    kept = [
        line
        for line in text.splitlines()
        if not line.strip().startswith(("where ", "others ", "help ", "log ", "help:", "log:"))
    ]
    return last_line("\n".join(kept))


def failed(ended: Ended) -> Verdict:
    """The last thing that it said."""
    why = reason(ended.err) or last_line(ended.out) or "nothing was said"
    return Verdict(State.FAILED, f"exit code {ended.code}: {why}"[:300])


def ends_well(ended: Ended) -> Verdict:
    """It ended with code 0; its last line is what it says."""
    return failed(ended) if ended.code else Verdict(State.OK, last_line(ended.out)[:300])


def by_its_word(ended: Ended) -> Verdict:
    """It told `says`, perhaps `ok` and `missed`, and its figures, as one object of JSON."""
    found = told(ended)
    if ended.code or not found:
        return failed(ended)
    state = State.FAILED if not found.pop("ok", True) else State.MISSED if found.pop("missed", False) else State.OK
    return Verdict(state, str(found.pop("says", "")), found)


def same_bits(ended: Ended) -> Verdict:
    """What `samebits verify --json` proved."""
    found = told(ended)
    if "exit_code" not in found:
        return failed(ended)
    figures = {
        key: found.get(key) for key in ("ranks", "lanes", "steps", "items", "device", "difference", "not_proved")
    }
    if found["exit_code"] == 0:
        ranks = ", ".join(map(str, found.get("ranks") or []))
        return Verdict(State.OK, f"same bits on {ranks} ranks over {found.get('steps')} steps", figures)
    plain = found.get("plain") or {}
    what = found.get("failed") or found.get("difference") or f"plain {plain.get('agreement')}: {plain.get('says', '')}"
    return Verdict(State.FAILED, f"not proved: {what}"[:300], figures)


def goes_on(ended: Ended) -> Verdict:
    """What `samebits verify --interrupt --json` proved."""
    if ended.code:
        return failed(ended)
    return Verdict(State.OK, "stopped and gone on with the same bits", told(ended))


def speeds(ended: Ended) -> Verdict:
    """What `samebits bench --json` measured."""
    found = told(ended)
    each = [one for one in found.get("configurations", []) if not one.get("failed")]
    if ended.code or not each:
        return failed(ended)
    says = ", ".join(f"{one['name']} {one['step_ms']:.2f} ms" for one in each)
    return Verdict(State.OK, says, {"configurations": [{**one, "rounds": None} for one in each]})


def pytest_says(ended: Ended) -> Verdict:
    """pytest's last line."""
    lines = [found[1] for line in ended.out.splitlines() if (found := _SUMMARY.match(line))]
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.out, re.MULTILINE)
    says = lines[-1] if lines else last_line(ended.out) or last_line(ended.err)
    state = State.OK if ended.code == 0 and lines else State.FAILED
    return Verdict(state, says[:300], {"failed": names} if names else {})


def ends_with(code: int, *words: str) -> Judge:
    """It ended with this code (-1: any but 0), and said all these words in its output or errors."""

    def judge(ended: Ended) -> Verdict:
        text = ended.out + ended.err
        missing = [word for word in words if word not in text]
        wrong_code = ended.code == 0 if code < 0 else ended.code != code
        if wrong_code or missing:
            wanted = f"; {', '.join(map(repr, missing))} was not said" if missing else ""
            return Verdict(State.FAILED, f"exit code {ended.code}{wanted}: {reason(ended.err)}"[:300])
        line = next((line for line in text.splitlines() if words and words[0] in line), last_line(ended.out))
        return Verdict(State.OK, line.strip()[:300])

    return judge
