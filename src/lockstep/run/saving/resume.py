"""`run.load_state`: read what `run.save_state` wrote, on any number of ranks; check everything, then change everything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.caller import where
from lockstep.checkpoint.folder import StateFolder, identity_of, left_between
from lockstep.checkpoint.manifest import Manifest, damage
from lockstep.errors import LockstepError, UsageError
from lockstep.notices import say
from lockstep.run.run_state import Machinery, RunState
from lockstep.run.saving.load_plan import LoadPlan, made
from lockstep.run.saving.state import facts_of, place_of, require_between_epochs

LOAD = "run.load_state"


def load_state(
    run: RunState, path: str | os.PathLike[str], objects: Mapping[str, Any], *, missing_ok: bool
) -> dict[str, Any]:
    """See `Run.load_state`."""
    require_between_epochs(run.progress, LOAD)
    folder = StateFolder(place_of(run, path))
    before = identity_of(folder.target)
    found, problem = None, ""
    try:
        found = folder.read_manifest()
    except LockstepError as error:
        problem = str(error)
    if not _all_found(run.machinery, folder.target, found, problem):
        if missing_ok:
            return {}
        raise UsageError(f"There is no state in {folder.target}. Pass missing_ok=True for a first start.")
    assert found is not None
    place, manifest = found
    # One rank of each node reads every byte; the others believe it.
    _raise_together(run.machinery, damage(place, manifest) if run.setup.environment.position.local_rank == 0 else "")
    plan, problem = made(run, place, manifest, objects)
    problem = f"{place} does not fit this run: {problem}" if problem else ""
    if identity_of(folder.target) != before:
        problem = (
            f"{folder.target} was replaced by another program while it was read. Give each run a folder of its own."
        )
    _raise_together(run.machinery, problem)
    assert plan is not None
    problem = plan.load_all_but_models()
    _raise_together(run.machinery, f"{place} does not fit this run: {problem}" if problem else "")
    if run.machinery.transport.rank == 0:
        _say_differences(run, plan, folder, manifest)
    plan.load_models()
    run.machinery.transport.barrier(LOAD, where())
    return plan.extra


def _all_found(machinery: Machinery, target: Path, found: tuple[Path, Manifest] | None, problem: str) -> bool:
    """Whether there is a state; raises when ranks see different ones."""
    mine = [problem, found is not None, str(found[1].files) if found else ""]
    told = machinery.transport.all_gather_object(mine, LOAD, where())
    if first := next(filter(None, (problem for problem, _, _ in told)), ""):
        raise UsageError(first)
    if any(one != told[0] for one in told):
        having = [rank for rank, (_, there, _) in enumerate(told) if there]
        raise UsageError(
            f"The ranks see different states in {target} (ranks {having} find one). Keep it where every rank can read it."
        )
    return bool(told[0][1])


def _raise_together(machinery: Machinery, problem: str) -> None:
    told = machinery.transport.all_gather_object(problem, LOAD, where())
    if first := next(filter(None, told), ""):
        raise UsageError(first)


def _say_differences(run: RunState, plan: LoadPlan, folder: StateFolder, manifest: Manifest) -> None:
    """On standard error: a folder that was left over, and why bits may differ from the undisturbed run."""
    if plan.place != folder.target:
        say(left_between(folder.target, plan.place))
    now, then = facts_of(run), manifest.facts
    changed = [
        f"{key} {now[key]}, not {then.get(key)}" for key in ("lanes", "threads", "seed") if now[key] != then.get(key)
    ]
    before = told if isinstance(told := then.get("fingerprint"), Mapping) else {}
    changed += plan.other_loaders()
    changed += [
        f"{key} {value}, not {before.get(key)}"
        for key, value in now["fingerprint"].items()
        if key != "threads" and before.get(key) != value
    ]
    if changed:
        say(f"the run goes on with {'; '.join(changed)}: the bits may differ from here.")
