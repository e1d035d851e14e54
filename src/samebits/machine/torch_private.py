"""The private names of torch that samebits uses, each with what breaks without it.

A new torch may rename or drop any of them. So the rest of samebits takes functions and classes from here, under our own
names (`from samebits.machine.torch_private import graph_task_id`), and a test keeps other files from naming torch's private
places. Attributes of torch's objects (`module._buffers`) are read where they are needed, and are listed here too.
`missing` looks for everything: for `samebits doctor` and for `make test-torches`.

This module imports nothing from torch: a name is looked up when one of our modules first asks for it. A missing one
becomes a stand-in whose first use raises, so that code which does not need it still works.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from samebits.errors import EnvironmentFailure
from samebits.machine.torch_versions import minor, tested_range

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PythonCallbackWork
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
    from torch.nn.modules.batchnorm import _NormBase as Norm
    from torch.utils import _python_dispatch as dispatching
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as WorkerIterator

__all__ = [
    "BatchNorm",
    "FakeTensor",
    "Norm",
    "PythonCallbackWork",
    "TorchDispatchMode",
    "WorkerIterator",
    "dispatching",
    "pytree",
]

COMPILER = "torch._dynamo"
"""The module that torch's optimizers import, which takes more than a second."""


@dataclass(frozen=True)
class PrivateName:
    """A module, function or class of torch."""

    module: str
    name: str
    """In the module, with dots; empty for the module itself."""
    needed_for: str
    since: tuple[int, int] = (0, 0)
    """The first torch that has it."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    def find(self) -> Any:
        """Import it. Raises ImportError or AttributeError if this torch lacks it."""
        found: Any = importlib.import_module(self.module)
        for part in filter(None, self.name.split(".")):
            found = getattr(found, part)
        return found


BACK_END, STAGES, WORKERS = "the backend samebits", "model_parallel and pipeline", "replacing loader workers"
COMPILED = "DDP inside torch.compile"

PLACES = {
    # of the backend and the transport
    "AllgatherOptions": PrivateName(
        "torch.distributed.distributed_c10d", "AllgatherOptions", f"{BACK_END}: all_gather"
    ),
    "FakeTensor": PrivateName("torch._subclasses.fake_tensor", "FakeTensor", f"{BACK_END}: refusing such tensors"),
    "autograd_node": PrivateName(
        "torch._C", "_current_autograd_node", f"{BACK_END}: buckets of DDP under way together"
    ),
    "graph_task_id": PrivateName(
        "torch._C", "_current_graph_task_id", f"{BACK_END}: buckets of DDP under way together"
    ),
    "queue_callback": PrivateName(
        "torch.autograd", "Variable._execution_engine.queue_callback", f"{BACK_END}: buckets of DDP under way together"
    ),
    "functional_collectives": PrivateName(
        "torch", "ops._c10d_functional", f"{BACK_END}: its self-test at the start of a run"
    ),
    "recorded_elsewhere": PrivateName(
        "torch.distributed.distributed_c10d",
        "_FR_SELF_RECORDING_BACKENDS",
        f"{BACK_END}: keeping torch's flight recorder away, which fails on groups written in Python",
        (2, 15),
    ),
    "PythonCallbackWork": PrivateName(
        "torch._C._distributed_c10d", "PythonCallbackWork", f"{BACK_END}: works whose C++ half DDP keeps"
    ),
    "dispatching": PrivateName("torch.utils._python_dispatch", "", f"{BACK_END}: what CommDebugMode and profiles show"),
    "FrameAction": PrivateName("torch._C", "_dynamo.eval_frame._FrameAction", f"{BACK_END}: {COMPILED}"),
    "FrameExecStrategy": PrivateName("torch._C", "_dynamo.eval_frame._FrameExecStrategy", f"{BACK_END}: {COMPILED}"),
    "set_code_exec_strategy": PrivateName(
        "torch._C", "_dynamo.eval_frame.set_code_exec_strategy", f"{BACK_END}: {COMPILED}"
    ),
    "make_group": PrivateName(
        "torch.distributed.distributed_c10d", "_new_group_with_tag", f"{BACK_END}: new_group on some of the ranks only"
    ),
    "rank_not_in_group": PrivateName(
        "torch.distributed.distributed_c10d", "_rank_not_in_group", "refusing a script's own collectives inside a lane"
    ),
    "groups": PrivateName(
        "torch.distributed.distributed_c10d", "_world", "refusing exchanges of a script's own groups inside a lane"
    ),
    "monitored_barrier": PrivateName(
        "torch.distributed.distributed_c10d", "monitored_barrier", f"{BACK_END}: dist.monitored_barrier"
    ),
    "public_monitored_barrier": PrivateName(
        "torch.distributed", "monitored_barrier", f"{BACK_END}: dist.monitored_barrier"
    ),
    # of the engine
    "functions": PrivateName("torch", "_VF", "numerics=portable: LSTM outside oneDNN"),
    "is_onednn_enabled": PrivateName("torch._C", "_get_mkldnn_enabled", "numerics=portable: LSTM outside oneDNN"),
    "enable_onednn": PrivateName("torch._C", "_set_mkldnn_enabled", "numerics=portable: LSTM outside oneDNN"),
    "multiply_each": PrivateName("torch", "_foreach_mul_", "the engine: gradients in few kernels"),
    "zero_each": PrivateName("torch", "_foreach_zero_", "the engine: gradients in few kernels"),
    "norm_each": PrivateName("torch", "_foreach_norm", "run.clip_grad_norm_ on GPUs: norms in few kernels"),
    "find_unfinite": PrivateName(
        "torch", "_amp_foreach_non_finite_check_and_unscale_", "16-mixed on GPUs: overflow in few kernels"
    ),
    "global_forward_hooks": PrivateName(
        "torch.nn.modules.module", "_global_forward_hooks", "the engine: rows of embeddings' gradients"
    ),
    "transforms": PrivateName(
        "torch._C", "_functorch.peek_interpreter_stack", "the engine: rows of embeddings' gradients"
    ),
    "storage_uses": PrivateName("torch._C", "_storage_Use_Count", "the engine: gradients that a script keeps"),
    "BatchNorm": PrivateName("torch.nn.modules.batchnorm", "_BatchNorm", "samebits verify: naming BatchNorm layers"),
    "Norm": PrivateName("torch.nn.modules.batchnorm", "_NormBase", "the engine: running statistics"),
    "DisableTorchFunctionSubclass": PrivateName("torch._C", "DisableTorchFunctionSubclass", STAGES),
    "TorchDispatchMode": PrivateName("torch.utils._python_dispatch", "TorchDispatchMode", f"{STAGES}; samebits verify"),
    "DisableTorchFunction": PrivateName("torch._C", "DisableTorchFunction", STAGES),
    "swap_tensor_impl": PrivateName("torch._C", "_swap_tensor_impl", f"{STAGES}: parameters of other stages"),
    "cast": PrivateName("torch", "ops.aten._to_copy.default", f"{STAGES} under autocast"),
    "function_modes": PrivateName("torch.overrides", "_get_current_function_mode_stack", STAGES),
    "pytree": PrivateName("torch.utils._pytree", "", f"{STAGES}; dp"),
    "saved_tensors_hooks": PrivateName(
        "torch._C", "_autograd._top_saved_tensors_default_hooks", f"{STAGES}; the engine: rows of embeddings' gradients"
    ),
    "run_backward": PrivateName("torch.autograd.graph", "_engine_run_backward", f"{STAGES}: models larger than a GPU"),
    "compiler_settings": PrivateName(
        "torch._dynamo.config", "", "torch.compile: shapes that do not depend on the rank; samebits verify"
    ),
    "compiler_stance": PrivateName(
        "torch._dynamo.eval_frame", "", "torch.compile: a stance in which the first sizes decide what is compiled"
    ),
    "graph_break": PrivateName(COMPILER, "graph_break", f"{STAGES}: torch.compile around a prepared model"),
    "inductor_settings": PrivateName("torch._inductor.config", "", "torch.compile: deterministic kernels"),
    "operator_names": PrivateName("torch._C", "_dispatch_get_all_op_names", "`allow`: operators by their names"),
    "has_kernel": PrivateName("torch._C", "_dispatch_has_kernel_for_dispatch_key", "`allow`: their kernels"),
    "loader_worker": PrivateName(
        "torch.utils.data._utils.worker", "", "IterableDataset: reading all of it in each loader worker"
    ),
    # of the feed
    "WorkerIterator": PrivateName("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter", WORKERS),
    "remove_worker_pids": PrivateName("torch._C", "_remove_worker_pids", WORKERS),
    # of the launcher
    "open_shared_storage": PrivateName("torch", "UntypedStorage._new_shared_fd_cpu", "samebits.spawn: shared tensors"),
    "default_store": PrivateName(
        "torch.distributed.distributed_c10d", "_get_default_store", "the launcher: replicas of DDP on several nodes"
    ),
    "call_when_cuda_starts": PrivateName("torch.cuda", "_lazy_call", "the launcher: each rank on a GPU of its own"),
}
"""By our own names."""


@dataclass(frozen=True)
class Attributes:
    """Private attributes of the objects of one class."""

    kind: str
    names: str
    needed_for: str


ATTRIBUTES = (
    Attributes("torch.Tensor", "_version", "the engine: gradients that a script has written to"),
    Attributes(
        "torch.Tensor", "_indices _values _backward_hooks _post_accumulate_grad_hooks", "the engine: hooks and rows"
    ),
    Attributes(
        "torch.nn.Module",
        "_forward_hooks _backward_hooks _backward_pre_hooks _is_full_backward_hook",
        "the engine: rows of embeddings' gradients, hooks that look at gradients",
    ),
    Attributes(
        "the backward of an embedding",
        "_saved_indices _saved_padding_idx _saved_scale_grad_by_freq _saved_sparse",
        "the engine: rows of embeddings' gradients",
    ),
    Attributes("torch.Tensor", "_is_view", f"{STAGES}: where a model may be cut"),
    Attributes("torch.UntypedStorage", "_cdata", f"the engine: gradients that a script keeps; {STAGES}"),
    Attributes("torch.UntypedStorage", "_share_fd_cpu_", "samebits.spawn: shared tensors"),
    Attributes("torch.storage.TypedStorage", "_untyped_storage", "samebits.spawn: shared tensors"),
    Attributes("torch.nn.Module", "_parameters _buffers _modules _non_persistent_buffers_set", "the engine"),
    Attributes("torch.nn.Module", "_call_impl _compiled_call_impl", STAGES),
    Attributes("torch.nn.Module", "_apply", "GPUs: layers that move their parameters themselves"),
    Attributes("torch.nn.Module", "_replicate_for_data_parallel", "dp"),
    Attributes("torch.nn.RNN", "_flat_weights _flat_weight_refs", f"{STAGES}: recurrent layers"),
    Attributes("torch._dynamo.OptimizedModule", "_orig_mod", "models that torch.compile has wrapped"),
    Attributes("torch.optim.SGD", "_init_group", "zero1: own optimizers"),
    Attributes("torch.optim.SGD", "_optimizer_step_pre_hooks _optimizer_step_post_hooks", "the engine: hooks of steps"),
    Attributes("torch.library.Library", "_destroy", "`allow`: another list in a second run of a process"),
    Attributes("torch.autocast", "_enabled", "samebits verify: the row plain under autocast"),
    Attributes("torch._ops.OpOverload", "_schema", "noticing what lanes write to; samebits verify"),
    Attributes("torch.distributed.ProcessGroup", "_get_backend _device_types", "noticing a script's own collectives"),
    Attributes(
        "torch._C._distributed_c10d.Backend", "_get_sequence_number_for_group", "noticing a script's own collectives"
    ),
    Attributes("torch.distributed.ProcessGroupNCCL", "_allgather_base _timeout", "ranks with a GPU each"),
    Attributes(
        "torch.utils._python_dispatch",
        "_is_in_torch_dispatch_mode _get_current_dispatch_mode_stack _push_mode _pop_mode _disable_current_modes",
        f"{BACK_END}: what CommDebugMode and profiles show",
    ),
    Attributes("torch.autograd.profiler", "_is_profiler_enabled", f"{BACK_END}: what profiles show"),
    Attributes(
        "torch.autograd.profiler.record_function", "_call_end_callbacks_on_future", f"{BACK_END}: what profiles show"
    ),
    Attributes(
        "torch.utils.data._utils.worker", "_worker_info", "IterableDataset: reading all of it in each loader worker"
    ),
    Attributes(
        "torch.utils.data.DataLoader", "_get_iterator _iterator", f"refusing loaders that cannot be cut; {WORKERS}"
    ),
    Attributes("DataLoader's iterator", "_reset _try_get_data _process_data _shutdown_workers", WORKERS),
)


def __getattr__(name: str) -> Any:
    """Look up one of `PLACES`; a stand-in if this torch lacks it."""
    place = PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return place.find()
    except (ImportError, AttributeError):
        return _Gone(name, (), {"place": place})


def if_there(name: str) -> Any:
    """One of `PLACES`, or None if this torch lacks it."""
    try:
        return PLACES[name].find()
    except (ImportError, AttributeError):
        return None


def if_imported(name: str) -> Any:
    """One of `PLACES` that is a module, or None if nobody has imported it."""
    return sys.modules.get(PLACES[name].module)


def replace(name: str, other: Any) -> None:
    """Put something of ours where torch keeps one of `PLACES`."""
    place = PLACES[name]
    *path, last = place.name.split(".")
    holder = PrivateName(place.module, ".".join(path), "").find()
    setattr(holder, last, other)


class _Gone(type):
    """A stand-in for a missing name, also as a base class: the first use raises EnvironmentFailure."""

    place: PrivateName

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        version = sys.modules["torch"].__version__
        raise EnvironmentFailure(
            f"torch {version} has no {cls.place}, which is needed for {cls.place.needed_for}. "
            f"samebits was tested with torch {tested_range()}."
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls()


@dataclass(frozen=True)
class Missing:
    """A name that this torch lacks, and what it is needed for."""

    name: str
    needed_for: str

    def __str__(self) -> str:
        return f"{self.name} ({self.needed_for})"


def missing(*, compiler: bool = False) -> list[Missing]:
    """List the private names that this torch should have but lacks.

    Args:
        compiler: whether to look into torch's compiler too, which takes seconds to import.
    """
    version = minor(importlib.import_module("torch").__version__)
    places = [Missing(str(each), each.needed_for) for name, each in PLACES.items()
              if each.since <= version and (compiler or not _of_compiler(each.module)) and if_there(name) is None]  # fmt: skip
    examples = _examples(compiler=compiler)
    attributes = [
        Missing(f"{each.kind}.{name}", each.needed_for)
        for each in ATTRIBUTES
        if each.kind in examples
        for name in each.names.split()
        if not _has(examples[each.kind], name)
    ]
    return places + attributes


def _of_compiler(name: str) -> bool:
    return name.startswith((COMPILER, "torch._inductor"))


def _has(example: Any, name: str) -> bool:
    """Whether it has the attribute or declares it: making an optimizer just to look would import the compiler."""
    classes = example.__mro__ if isinstance(example, type) else ()
    return hasattr(example, name) or any(name in vars(each).get("__annotations__", ()) for each in classes)


def _examples(*, compiler: bool) -> dict[str, Any]:
    """An object or class of each kind in `ATTRIBUTES`."""
    torch = importlib.import_module("torch")
    storage = torch.zeros(1, device="cpu").untyped_storage()
    examples = {
        "torch.Tensor": torch.zeros(1, device="cpu"),
        "torch.UntypedStorage": storage,
        "torch.storage.TypedStorage": torch.storage.TypedStorage(
            wrap_storage=storage, dtype=torch.float, _internal=True
        ),
        "torch.nn.Module": torch.nn.Linear(1, 1),
        "the backward of an embedding": torch.nn.Embedding(1, 1, device="cpu")(
            torch.zeros(1, dtype=torch.int64, device="cpu")
        ).grad_fn,
        "torch.nn.RNN": torch.nn.RNN(1, 1),
        "torch.optim.SGD": torch.optim.SGD,
        "torch._ops.OpOverload": torch.ops.aten.add.Tensor,
        "torch.distributed.ProcessGroup": torch.distributed.ProcessGroup,
        "torch.utils._python_dispatch": importlib.import_module("torch.utils._python_dispatch"),
        "torch.autograd.profiler": torch.autograd.profiler,
        "torch.autograd.profiler.record_function": torch.autograd.profiler.record_function,
        "torch.autocast": torch.autocast("cpu", enabled=False),
        "torch.utils.data.DataLoader": importlib.import_module("torch.utils.data").DataLoader([0]),
        "torch.utils.data._utils.worker": importlib.import_module("torch.utils.data._utils.worker"),
        "DataLoader's iterator": PLACES["WorkerIterator"].find(),
    }
    if compiler:
        examples["torch._dynamo.OptimizedModule"] = torch.compile(torch.nn.Linear(1, 1), backend="eager")
    return examples
