"""`run.save_state`: refuse, collect, agree, and rank 0 writes the state while all wait.

An automatic state is collected and agreed on in the same way; a process of its own writes it (`store.checkpointer`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.protocol.events import Kind
from samebits.protocol.state_files.folder import StateFolder, complete, not_written
from samebits.protocol.state_files.manifest import SavedFile
from samebits.rank.caller import where
from samebits.rank.checkpoint.format.sources import Found, inventory_of, sources, write_tensors
from samebits.rank.checkpoint.format.state import State, differing
from samebits.rank.checkpoint.parts.optimizers import optimizers_of
from samebits.rank.checkpoint.parts.same_on_ranks import apart, of_optimizers
from samebits.rank.checkpoint.parts.whole import collect, facts_of
from samebits.rank.checkpoint.weights.save import place_of
from samebits.rank.checks.replicas import bits_held, compare, compared
from samebits.rank.position.exact_json import digest
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.moment import Moment, Region
from samebits.rank.position.run_state import Components, RunState
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.together import Together

SAVE = "run.save_state"


Write = Callable[[RunState, StateFolder, State, Found, Sequence[Any]], str]
"""Does something with the state on which the ranks have agreed, the last argument being what each of them reported; returns
why this rank could not. Collective: call it on every rank."""


def save_state(
    run: RunState,
    path: str | os.PathLike[str],
    extra: Mapping[str, Any],
    write: Write | None = None,
    offer: Any = None,
    *,
    compares: bool = True,
) -> None:
    """See `Run.save_state`.

    Args:
        run: whose state it is.
        path: where it goes.
        extra: what the script names.
        write: what comes after the ranks have agreed, by default `write_now`.
        offer: what `write` is to know of this rank on all others, as JSON values.
        compares: whether ranks first make sure that they hold the same bits.
    """
    require_between_epochs(run.loop_state, SAVE)
    # The first exchange comes before anything else: behind `if run.is_main:` it raises before a file is touched.
    if compares:
        compare(run, run.components.transport.all_gather_object(bits_held(run), SAVE, where()))
    if run.loop_state.resumption.late is not None:
        run.loop_state.resumption.late.require()
    if run.loop_state.resumption.schedulers is not None:
        run.loop_state.resumption.schedulers(True)
    if run.loop_state.resumption.load_again is not None:
        run.loop_state.resumption.load_again()
    folder = StateFolder(place_of(run, path))
    together = Together(run.components.transport, SAVE, where())
    if run.components.transport.rank == 0:
        together.refuse(folder.refusal())
    states = {
        label: run.components.strategy.whole_state(one, everyone=False) for label, one in optimizers_of(run.loop_state)
    }
    contents = together.do(lambda: collect(run, extra, states)) or State()
    equal = compared(run)
    record = together.do(lambda: {file: inventory_of(tensors, equal) for file, tensors in contents.files.items()}) or {}
    parts = together.do(lambda: of_optimizers(run)) or {}
    found, offers = _agree(run.components, together, contents, record, (parts, offer))
    if problem := (write or write_now)(run, folder, contents, found, offers):
        together.refuse(not_written(folder.target, problem))
    together.agree()
    if write is None:
        run.note(Kind.CHECKPOINT, path=str(folder.target))


def require_between_epochs(loop_state: LoopState, call: str) -> None:
    """Raise `UsageError` inside an epoch's steps, where a state would be half of something."""
    loop_state.position.require_same_on_every_rank(call)
    if loop_state.position.region is not Region.SCRIPT:
        raise UsageError(
            f"{call} was called inside the loop over run.steps, where an epoch is half done.",
            "Call it after the loop, at the end of the epoch.",
        )


def write_alone(run: RunState, folder: StateFolder, at: Moment, taken_s: float | None) -> None:
    """Write the state as it was at `at`, without the others; this rank holds all of it.

    Only nodes compare what each has written by SHA-256; on one, nobody else will read it.

    Raises:
        OSError: when it cannot be written.
        EnvironmentFailure: when somebody else is writing there.
    """
    states = {label: one.state for label, one in optimizers_of(run.loop_state)}
    contents, files, not_finite = collect(run, {}, states, at), {}, ""
    folder.begin()
    for file, tensors in sorted(contents.files.items()):
        found = sources([inventory_of(tensors)])
        written, problem = write_tensors(
            folder.stage / file,
            found,
            tensors.tensors,
            AloneTransport(),
            hashes=run.components.transport.nodes is not None,
        )
        if problem:
            raise OSError(errno.ENOSPC, problem)
        files[file] = SavedFile(written["size"], written["sha256"], tuple(sorted(found)))
        not_finite = not_finite or written["not_finite"]
    facts = {**facts_of(run), "step": at.counters["step"]}
    try:
        complete(folder, contents.written(), files, facts, taken_s, not_finite=not_finite)
    except SamebitsError as error:
        raise OSError(errno.ENOSPC, str(error)) from error


def _agree(
    components: Components, together: Together, contents: State, record: dict[str, Any], more: Any
) -> tuple[Found, list[Any]]:
    """Compare what must be equal, and find out who holds what; merges the optimizers' entries into `contents`.

    `more` are the numbers of optimizers that might give each rank a part, and what this rank reports to the others; returns
    what each of them reports, too.
    """
    parts, offer = more
    if components.transport.world_size == 1:
        together.agree()
        return {file: sources([inventory]) for file, inventory in record.items()}, [offer]
    mine = {
        "documents": contents.digests(),
        "inventory": digest([record, contents.entries]),
        "parts": parts,
        "offer": offer,
    }
    everyone = together.agree(mine)
    if problem := apart([one["parts"] for one in everyone]):
        raise problem
    if label := differing([one["documents"] for one in everyone]):
        raise UsageError(
            f"{label!r} is not the same on every rank, so no single state can be saved.",
            "Save what run.mean, run.tally or run.broadcast returned; step schedulers on every rank.",
        )
    if len({one["inventory"] for one in everyone}) == 1:
        inventories = [record]
    else:
        full = components.transport.all_gather_object([record, contents.entries], SAVE, where())
        inventories = [inventory for inventory, _ in full]
        for label in contents.entries:
            found = {name: entry for _, entries in reversed(full) for name, entry in entries[label].items()}
            listed = [name for group in contents.documents[label]["groups"] for name in group["params"]]
            contents.entries[label] = {name: found[name] for name in listed if name in found}
    found = {file: sources([inventory[file] for inventory in inventories]) for file in record}
    return found, [one["offer"] for one in everyone]


def write_now(
    run: RunState,
    folder: StateFolder,
    contents: State,
    found: Found,
    record: Sequence[Any] = (),  # noqa: ARG001
) -> str:
    """Give every rank's tensors to rank 0, which writes; return why it could not, on rank 0: a `Write`."""
    is_main, problem, files, not_finite = run.components.transport.rank == 0, "", {}, ""
    if is_main:
        try:
            folder.begin()
        except (OSError, SamebitsError) as error:
            problem = str(error)
    for file in sorted(found):
        path = None if problem else folder.stage / file
        written, trouble = write_tensors(path, found[file], contents.files[file].tensors, run.components.transport)
        problem = problem or trouble
        if written:
            files[file] = SavedFile(written["size"], written["sha256"], tuple(sorted(found[file])))
            not_finite = not_finite or written["not_finite"]
    if is_main and not problem:
        try:
            complete(folder, contents.written(), files, facts_of(run), not_finite=not_finite)
        except (OSError, SamebitsError) as error:
            problem = str(error)
    if is_main and problem:
        folder.abandon()
    return problem
