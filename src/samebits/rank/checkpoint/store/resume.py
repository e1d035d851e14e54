"""`run.load_state`: read what `run.save_state` wrote, on any number of ranks; check everything, then load it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.events import Kind
from samebits.protocol.run_folder import unsaved
from samebits.protocol.state_files.folder import StateFolder, identity_of, left_between
from samebits.protocol.state_files.manifest import NAME, Manifest, damage
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.position import counters
from samebits.rank.checkpoint.parts.whole import LoadPlan, facts_of, made
from samebits.rank.checkpoint.store.other_nodes import replicated
from samebits.rank.checkpoint.store.save import require_between_epochs
from samebits.rank.checkpoint.weights.save import place_of
from samebits.rank.init.numerics import ANY_CPU
from samebits.rank.look.frames import read_behind_its_loop
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.together import Together

LOAD = "run.load_state"


def load_state(
    run: RunState,
    path: str | os.PathLike[str],
    objects: Mapping[str, Any],
    *,
    missing_ok: bool,
    source: int = 0,
    is_whole: bool = False,
) -> dict[str, Any]:
    """See `Run.load_state`; `source` is the rank that hands it around to nodes that lack it.

    `is_whole`: whether this rank has just read every byte of it.
    """
    require_between_epochs(run.loop_state, LOAD)
    run.loop_state.resumption.has_looked = True
    with replicated(run, StateFolder(place_of(run, path)).target, source) as place:
        return _load(run, StateFolder(place), objects, missing_ok=missing_ok, is_whole=is_whole)


def _load(
    run: RunState, folder: StateFolder, objects: Mapping[str, Any], *, missing_ok: bool, is_whole: bool
) -> dict[str, Any]:
    before = identity_of(folder.target)
    together = Together(run.components.transport, LOAD, where())
    found = together.do(folder.read_manifest)
    if not _all_found(together, folder.target, found):
        if missing_ok:
            return {}
        raise UsageError(f"There is no state in {folder.target}.", "Pass missing_ok=True for a first start.")
    assert found is not None
    place, manifest = found
    lacking = manifest.facts.get("without")
    # One rank of each node reads every byte; the others believe it.
    if run.config.environment.position.local_rank == 0 and not is_whole:
        together.refuse(damage(place, manifest))
    together.agree()
    plan = together.do(lambda: _planned(run, folder.target, before, found, objects))
    together.agree()
    assert plan is not None
    together.do(plan.saved.load)
    together.agree()
    if run.components.transport.rank == 0:
        _say_differences(run, plan, folder, manifest)
    plan.load_models()
    run.loop_state.resumption.has_resumed = True
    run.loop_state.resumption.resumed_without = [str(one) for one in lacking] if isinstance(lacking, list) else []
    run.components.metrics.earlier.keep_until(run.components.step_timer.step, (place / NAME).stat().st_mtime)
    run.components.metrics.catch_up(plan.lines)
    # Where nobody records, steps follow that are in no record.
    run.loop_state.recorded = plan.recorded if run.loop_state.recorded is not None else None
    run.note(Kind.RESUME, state=folder.target.name)
    run.components.transport.barrier(LOAD, where())
    return plan.extra


def _all_found(together: Together, target: Path, found: tuple[Path, Manifest] | None) -> bool:
    """Whether there is a state; raise when ranks see different ones."""
    record = together.agree([found is not None, str(found[1].files) if found else ""])
    if any(one != record[0] for one in record):
        having = [rank for rank, (there, _) in enumerate(record) if there]
        raise UsageError(
            f"The ranks see different states in {target} (ranks {having} find one).",
            "Keep it where every rank can read it.",
        )
    return bool(record[0][0])


def _refuse_other_numerics(run: RunState, target: Path, manifest: Manifest) -> None:
    """Raise `UsageError` where a run of portable bits would begin with a state that has the bits of one kind of CPU."""
    then = record if isinstance(record := manifest.facts.get("fingerprint"), Mapping) else {}
    if run.config.arithmetic.numerics == "portable" and then.get("cpu") != ANY_CPU:
        raise UsageError(
            f"{target} was written by a run whose bits depend on the CPU ({then.get('cpu')}), so what follows would too.",
            "Use --numerics exact, or begin anew with another --name: `samebits.load_weights` takes the weights alone.",
        )


def _planned(
    run: RunState,
    target: Path,
    before: tuple[int, int] | None,
    found: tuple[Path, Manifest],
    objects: Mapping[str, Any],
) -> LoadPlan:
    """Make the plan; refuse when another program replaced what it was made from."""
    try:
        _refuse_other_numerics(run, target, found[1])
        return made(run, *found, objects)
    finally:
        if identity_of(target) != before:
            raise UsageError(
                f"{target} was replaced by another program while it was read.", "Give each run a folder of its own."
            )


def _say_differences(run: RunState, plan: LoadPlan, folder: StateFolder, manifest: Manifest) -> None:
    """Name on standard error what was left over, what is new, and why bits may differ from the undisturbed run."""
    for name in plan.new:
        say(f"the state has no {name!r}: run.track({name}=...) begins with the object as the script made it.")
    if manifest.not_finite:
        say(f"{folder.target} is not finite: {manifest.not_finite}.")
    if plan.place != folder.target:
        say(left_between(folder.target, plan.place))
    now, then = facts_of(run), manifest.facts
    changed = [
        f"{key} {now[key]}, not {then.get(key)}" for key in ("lanes", "threads", "seed") if now[key] != then.get(key)
    ]
    before = record if isinstance(record := then.get("fingerprint"), Mapping) else {}
    changed += _other_loaders(counters(run, None)["loaders"], plan.loaders)
    changed += [
        f"{key} {value}, not {before.get(key)}"
        for key, value in now["fingerprint"].items()
        if key != "threads" and before.get(key) != value
    ]
    if changed:
        say(f"the run resumes with {'; '.join(changed)}: the bits may differ from here.")


def _other_loaders(mine: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words, how the run's loaders differ from those of the state."""
    return [
        f"{now[key]} {words} of loader {number}, not {then[key]}"
        for number, (now, then) in enumerate(zip(mine, saved, strict=False), 1)
        for key, words in (("samples", "samples"), ("batch_size", "samples per batch"))
        if now[key] != then[key]
    ]


def skips_states(run: RunState) -> bool:
    """Whether this start of the ranks loads nothing, because states lack something and the run must be exact. Collective."""
    settings, folder = run.config.environment.settings, run.config.folder
    if settings is None or folder is None or settings.recover != "exact" or not settings.restart.number:
        return False
    return run.components.transport.any(bool(unsaved(folder, "names")), "what states lack", where())


def may_resume_behind(run: RunState) -> bool:
    """Whether a run can resume behind the loop around the caller, where no rank's script reads what it assigns. Collective."""
    return not run.components.transport.any(bool(read_behind_its_loop()), "names behind the loop", where())
