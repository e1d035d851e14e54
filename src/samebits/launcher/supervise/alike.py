"""What must be the same on all nodes of a run, and what should be: by the names that people know."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from pathlib import Path

from samebits.launcher.nursery.kept import torch_variables_for
from samebits.launcher.request import LaunchRequest
from samebits.launcher.script_source import source_of
from samebits.machine.cores import model_and_instructions
from samebits.machine.torch_versions import release
from samebits.protocol.installation import VERSION, source_digest

OPEN = "the script's"
"""Of an option that was not given."""


def same_on_all(request: LaunchRequest) -> dict[str, str]:
    """What the results depend on, by the names that people know."""
    course = request.computation.course
    source = source_of(request.title, request.entry.module is not None)
    digest = hashlib.sha256((source or "").encode()).hexdigest()[:12]
    form, arithmetic, saving, recovery = (
        request.computation.form,
        request.computation.arithmetic,
        request.saving,
        request.recovery,
    )
    return {
        "their version of samebits": f"{VERSION} (source {source_digest()})",
        "their version of torch": _torch_version(request),
        "their version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the script": f"{Path(request.title).name} (sha256 {digest})",
        "the script's arguments": " ".join(request.entry.args) or "none",
        "--lanes": str(request.computation.lanes or OPEN),
        "--device": request.placement.device,
        "strategy and mesh": f"{form.strategy or OPEN} {form.mesh or ''}".strip(),
        "precision and numerics": f"{arithmetic.precision or ''} {arithmetic.numerics or ''}".strip() or OPEN,
        "--allow": ",".join(arithmetic.allow) or "nothing",
        "--backend": request.computation.backend or OPEN,
        "--check-every": request.computation.check_every or OPEN,
        "--resume-nonfinite": "yes" if request.recovery.resume_nonfinite else "no",
        "--from, --fresh and --skip-steps": " ".join(
            [
                course.parent.text if course.parent is not None else "no run",
                ",".join(course.fresh) or "no options",
                course.skipped.text or "no steps",
            ]
        ),
        "--save-every": f"{saving.every or OPEN}, --name {saving.name}, --keep {saving.keep or OPEN}, "
        f"--states {saving.url or 'none'}"
        if saving is not None
        else "nothing",
        "--snapshots": f"{recovery.keeping.steps or 'auto'}" if recovery.keeping.is_on else "off",
        "--recover, --shrink and --max-restarts": f"{recovery.recover} {recovery.shrinks} {recovery.max_restarts}",
        "--on-damage": str(recovery.on_damage),
    }


def _torch_version(request: LaunchRequest) -> str:
    """Of one release all builds have the same portable bits."""
    version = importlib.metadata.version("torch")
    return release(version) if torch_variables_for(request) else version


def alike_on_all(request: LaunchRequest) -> dict[str, str]:
    """What bits may depend on, by the names that people know. `samebits.init` compares the GPUs of ranks."""
    if torch_variables_for(request):
        return {}
    model, instructions = model_and_instructions()
    return {"processors": model or "unknown", "instruction sets": instructions or "unknown"}
