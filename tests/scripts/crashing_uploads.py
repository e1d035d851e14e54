"""A copy of a state to a `file://` URL that is killed, or whose disk fails, at any call that changes the disk."""

import errno
import shutil
from itertools import count
from pathlib import Path

from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import damage
from samebits.protocol.state_files.remote_files import RemoteFiles
from samebits.protocol.state_files.remote_state import RemoteState
from samebits.rank.checkpoint.store.store import Store
from tests.support.system_calls import CHANGES, Killed, watch

FULL = errno.ENOSPC


def faulty_copies(place, state_of, error=None):
    """Let the copy of a newer state of the same step fail at each call; how often, and what was wrong afterwards.

    Args:
        place: an empty folder.
        state_of: makes a state of the disk: its folder and its content.
        error: what the call fails with, instead of being the last one.
    """
    place = Path(place)
    old, new = (state_of(place / name / "step-00000002", name.encode() * 9000, b"{}") for name in ("old", "new"))
    there, url, wrong = place / "there", f"file://{place}/there", []
    for nth in count():
        shutil.rmtree(there, ignore_errors=True)
        assert Store(old.parent, 1, url).added(old) == ""
        fault = Fault(str(there), nth, error)
        watch(lambda: Store(new.parent, 1, url).added(new), fault.look)
        if fault.made <= nth:
            return nth, wrong
        for wanted in ((old, new), (new,)):
            shutil.rmtree(place / "copy", ignore_errors=True)
            RemoteState(f"{url}/step-00000002").fetch(place / "copy")
            found = StateFolder(place / "copy").read_manifest()
            weights = place / "copy" / "model.safetensors"
            if damage(*found) or weights.read_bytes() not in [(one / weights.name).read_bytes() for one in wanted]:
                wrong.append(f"call {nth}: {damage(*found)}")
            if problem := Store(new.parent, 1, url).added(new):
                wrong.append(f"call {nth}: {problem}")
        if len(left := RemoteFiles(f"{url}/step-00000002").names()) != 3:
            wrong.append(f"call {nth}: {left}")
    return None


class Fault:
    """What happens at the `nth` call that may change what is below `there`."""

    def __init__(self, there, nth, error):
        self.there, self.nth, self.error, self.made = there, nth, error, 0

    def look(self, call):
        if call.name not in CHANGES or not any(self.there in path for path in call.paths()):
            return None
        self.made += 1
        if self.made - 1 != self.nth:
            return None
        if self.error is None:
            raise Killed
        return self.error
