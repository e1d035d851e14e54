"""What is known of an object without running anybody's code: whose it is, of what kind, its attributes and hooks."""

from __future__ import annotations

import argparse
import array
import collections
import datetime as dt
import enum
import functools
import inspect
import io
import numbers
import os
import random
import re
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from samebits.rank.checks.script_objects import is_the_users

HARMLESS = frozenset(
    """
    PIL _csv.writer _thread abc absl.flags addict albumentations argparse.Namespace ast
    builtins.classmethod builtins.code builtins.ellipsis builtins.frame builtins.mappingproxy builtins.property
    builtins.staticmethod builtins.super builtins.traceback builtins.weakref click concurrent.futures contextlib csv.DictWriter
    csv.writer dataclasses datasets datetime decimal.Context easydict enum fractions h5py.File h5py._hl hydra inspect
    ipaddress json kornia ml_collections multiprocessing numpy.dtype numpy.ufunc numpy.vectorize omegaconf operator
    os.PathLike pandas pathlib platform polars pyarrow re scipy sentencepiece sklearn string threading.Condition
    threading.Event threading.Lock threading.Semaphore threading.Thread threading._RLock tiktoken tokenizers
    torch.Size torch.amp.autocast_mode torch.autocast torch.autograd
    torch.cuda.Event torch.cuda.Stream torch.device torch.distributed torch.distributions torch.dtype torch.finfo
    torch.fx torch.iinfo torch.jit torch.layout torch.memory_format torch.nn.attention torch.nn.utils
    torch.overrides torch.profiler torch.serialization torch.utils.checkpoint torch.utils.data torch.utils.hooks
    torchaudio torchvision.datasets torchvision.transforms transformers typer
    types.GenericAlias types.MappingProxyType types.UnionType typing tyro unittest.mock uuid
    weakref.ReferenceType yacs zoneinfo
    """.split()
)
"""What may be read and called in a loop: nothing that is computed depends on what it keeps from step to step."""

SHOWN = frozenset(
    """
    absl.logging aim builtins.print clearml comet_ml logging loguru matplotlib mlflow neptune pprint rich seaborn structlog tensorboard
    tensorboardX torch.utils.tensorboard torchvision.utils tqdm visdom wandb warnings
    """.split()
)
"""What only shows what it gets: on the screen, in a log, in a picture."""

SHOWING = frozenset(
    """
    add_figure add_histogram add_image add_scalar add_scalars add_text debug error info log_metrics plot print savefig
    set_description set_postfix set_postfix_str warning
    """.split()
)
"""Methods that do so, of whatever they are."""

DRAWS = ("rand", "normal", "bernoulli", "multinomial", "choice", "uniform", "shuffle", "permutation", "sample", "seed")
"""How functions begin that draw from a global generator."""

WRITERS = frozenset(
    """
    concat copyto delattr delitem fill_diagonal heapify heappop heappush heappushpop heapreplace iadd imul insort
    insort_left insort_right isub itruediv place put put_along_axis putmask setattr setitem shuffle swap_tensors
    vector_to_parameters
    """.split()
)
"""Functions that change what they get first, or second."""

SETTERS = frozenset(
    """
    decimal.localcontext decimal.setcontext locale.setlocale numpy.setbufsize numpy.seterr
    numpy.seterrcall os.chdir os.putenv os.umask os.unsetenv sys.setrecursionlimit torch.set_default_device
    torch.set_default_dtype torch.set_default_tensor_type torch.set_float32_matmul_precision
    torch.set_flush_denormal
    """.split()
)
"""Functions that give or set what belongs to the whole process."""

SCALARS = frozenset(
    """
    abs all any bool chr float format hash id int isinstance issubclass len max min ord print range repr round str
    sum type
    """.split()
)
"""Builtins whose result is no part of what they get."""

FILLS = frozenset(
    """
    add append appendleft clear copy_ discard extend extendleft fill insert load_state_dict move_to_end pop popitem popleft push remove
       reset_parameters resize reverse rotate setdefault sort step subtract update write
    """.split()
)
"""Methods that change what they are called on, whatever it is; so does one that ends with an underscore."""

ACTING = frozenset({"load_state_dict", "step", "write"})
"""Those of them that do more."""

READING = frozenset(
    """
    buffers children eval get_last_lr modules named_buffers named_children named_modules named_parameters parameters
    state_dict train
    """.split()
)
"""Methods of what states hold that change nothing of it but its mode."""

GIVING = frozenset({"decimal.getcontext"})
"""Functions that give what belongs to the whole process."""

CONSTRUCTING = ("__new__", "_missing_", "__init__", "__post_init__")
"""Methods that run when a class is called."""

DISPATCHED = ("do_", "handle_", "visit_")
"""How methods begin that libraries find by a part of their name."""

NOT_CALLED = frozenset(
    "__delattr__ __init__ __new__ __del__ __post_init__ __init_subclass__ __reduce__ __setattr__ __setstate__".split()
)
"""Methods that no loop calls by itself."""


NEW: Any = type("New", (), {"__repr__": lambda _: "made in this turn"})()
"""In place of an object that the turn makes."""
ATOMS = (numbers.Number, str, bytes, type(None), range, slice, PurePath, re.Pattern, dt.date, dt.timedelta, dt.time,
         torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, types.EllipsisType,
         types.NotImplementedType, types.ModuleType, type, types.FunctionType)  # fmt: skip
_PLAIN = (list, dict, set, collections.deque, bytearray, memoryview, np.ndarray, Tensor, array.array,
          collections.UserDict, collections.UserList, type(os.environ))  # fmt: skip
_OPEN = (argparse.Namespace, types.SimpleNamespace, enum.Enum, tuple, frozenset, nn.Module, functools.partial,
         types.MethodType, nn.ParameterList, BaseException)  # fmt: skip
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_GLOBAL = {id(torch.default_generator), id(random._inst), id(np.random.mtrand._rand)}  # noqa: SLF001


def is_users(kind: Any) -> bool:
    """Whether the script, or a module beside it, defines a class."""
    module = getattr(kind, "__module__", None)
    return module == "__main__" or is_the_users(getattr(sys.modules.get(module or ""), "__file__", None) or "")


def is_own(function: Any) -> bool:
    """Whether it is a function of the script's files."""
    return isinstance(function, FunctionType) and (
        is_the_users(function.__code__.co_filename) or function.__globals__.get("__name__") == "__main__"
    )


def is_our_own(thing: Any) -> bool:
    return type(thing).__module__.startswith("samebits.")


def is_changeable(thing: Any) -> bool:
    """Whether it has a value of its own that may be changed."""
    if isinstance(thing, _PLAIN):
        return True
    return not isinstance(thing, (*ATOMS, tuple, frozenset, types.MethodType)) and (
        is_users(type(thing)) or isinstance(thing, _OPEN)
    )


def shows(thing: Any) -> bool:
    """Whether an object only shows what it gets."""
    return thing is sys.stdout or thing is sys.stderr or any(_is_in(one, SHOWN) for one in type(thing).__mro__)


def kind_of(thing: Any) -> str:
    """Of what kind something is that may change where nobody sees it; empty for anything else."""
    if id(thing) in _GLOBAL or thing is sys.stdout or thing is sys.stderr:
        return ""
    if isinstance(thing, (*ATOMS, *_PLAIN, *_OPEN)):
        return ""
    if isinstance(thing, types.BuiltinFunctionType):
        return kind_of(thing.__self__)
    if isinstance(thing, _GENERATORS):
        return "generator"
    if isinstance(thing, (Optimizer, LRScheduler)):
        return "optimizer"
    if isinstance(thing, torch.amp.GradScaler):
        return "optimizer" if thing.is_enabled() else ""
    if isinstance(thing, io.IOBase) and not isinstance(thing, (io.StringIO, io.BytesIO)):
        return "" if thing.closed or not thing.readable() else "place"
    libraries = [one for one in type(thing).__mro__ if not is_users(one) and one is not object]
    if is_users(type(thing)):
        first = next(iter(libraries), object)
        is_plain = first is object or issubclass(first, (*_PLAIN, *_OPEN, Dataset)) or _is_in(first, HARMLESS | SHOWN)
        return "" if is_plain else "place"
    if hasattr(type(thing), "__next__") and not shows(thing):
        return "loader" if "dataloader" in type(thing).__module__ else "place"
    if callable(getattr(thing, "__wrapped__", None)):
        return ""
    return "" if any(_is_in(one, HARMLESS) or _is_in(one, SHOWN) for one in libraries) else "place"


def is_listed(path: str, names: frozenset[str]) -> bool:
    """Whether a name, or that of a module or class around it, is in a list."""
    parts = path.split(".")
    return any(".".join(parts[:number]) in names for number in range(1, len(parts) + 1))


def _is_in(kind: type, names: frozenset[str]) -> bool:
    return is_listed(f"{kind.__module__}.{kind.__qualname__}", names)


def function_of(thing: Any) -> Any:
    """The function behind what stands in a class."""
    for kind, name in ((classmethod, "__func__"), (staticmethod, "__func__"), (property, "fget"),
                       (functools.cached_property, "func")):  # fmt: skip
        if isinstance(thing, kind):
            thing = getattr(thing, name)
    return unwrapped(thing)


def unwrapped(thing: Any) -> Any:
    """What a decorator of a library is around."""
    while hasattr(thing, "__wrapped__") and not (
        is_own(thing) or isinstance(thing, (type, nn.Module, types.MethodType))
    ):
        thing = thing.__wrapped__
    return thing


def attribute_of(thing: Any, name: str) -> Any:
    """An attribute's value, where getting it runs none of the user's code."""
    if isinstance(thing, super):
        of: Any = thing
        kinds = of.__self_class__.__mro__
        found = [vars(one)[name] for one in kinds[kinds.index(of.__thisclass__) + 1 :] if name in vars(one)]
        return getattr(thing, name) if found and not isinstance(found[0], property) else NEW
    static = inspect.getattr_static(thing, name, NEW)
    if isinstance(thing, nn.Module) and static is NEW:
        tables = (vars(thing).get(table) or {} for table in ("_parameters", "_buffers", "_modules"))
        return next((one[name] for one in tables if name in one), NEW)
    is_module = isinstance(thing, types.ModuleType) and not is_own(vars(thing).get("__getattr__"))
    if (static is NEW and not is_module) or (isinstance(static, property) and is_users(type(thing))):
        return NEW
    if is_users(type(static)) and hasattr(type(static), "__get__"):
        return NEW
    try:
        return getattr(thing, name)
    except Exception:  # noqa: BLE001 - a property of a library may raise anything
        return NEW


def is_saved(module: nn.Module, name: str) -> bool:
    """Whether a module's state has what is assigned to an attribute."""
    unsaved = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
    saved = {*module._parameters, *module._modules, *(module._buffers.keys() - unsaved), "training"}  # noqa: SLF001
    return name in saved or type(module).get_extra_state is not nn.Module.get_extra_state


def hooks_of(thing: Any) -> Iterator[Any]:
    """Functions that run when something of a module, an optimizer or a parameter happens."""
    found = [value for name, value in list(getattr(thing, "__dict__", {}).items()) if "hooks" in name]
    if isinstance(thing, Tensor):
        found += [getattr(thing, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    for one in found:
        yield from list(one.values()) if isinstance(one, dict) else ()


def memory_of(thing: Any) -> int:
    """What identifies an object: views of one memory are one thing."""
    while isinstance(thing, np.ndarray) and isinstance(thing.base, (np.ndarray, Tensor)):
        thing = thing.base
    if isinstance(thing, Tensor) and thing.layout is torch.strided and not thing.is_meta:
        return thing.untyped_storage().data_ptr() or id(thing)
    return int(thing.ctypes.data) if isinstance(thing, np.ndarray) else id(thing)


def parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Parts of a loader, and of what else libraries made, that run in the script's place."""
    if isinstance(thing, DataLoader):
        names = ("dataset", "sampler", "batch_sampler", "collate_fn", "generator")
        yield from ((name, getattr(thing, name, None)) for name in names)
    elif isinstance(thing, Dataset) or (callable(thing) and not isinstance(thing, (type, types.ModuleType, Tensor))):
        for name, value in list(getattr(thing, "__dict__", {}).items()):
            for part in value if isinstance(value, (list, tuple)) and len(value) < MOST_ELEMENTS else [value]:
                if is_users(type(part)) or isinstance(part, (Dataset, FunctionType)):
                    yield name, part
    elif isinstance(thing, collections.defaultdict):
        yield "default_factory", thing.default_factory


def registered(thing: Any) -> list[Any]:
    """The functions from which one chooses that `functools.singledispatch` made."""
    functions = vars(thing).get("registry") if isinstance(thing, FunctionType) else None
    return [*functions.values()] if isinstance(functions, types.MappingProxyType) else []


def users_methods(thing: Any, kinds: Iterable[type]) -> Iterator[tuple[str, FunctionType, bool]]:
    """Methods of the user's classes that something calls by itself: name, function, and whether `thing` comes first."""
    for kind in filter(is_users, kinds):
        for name, one in list(vars(kind).items()):
            if name not in NOT_CALLED and is_own(function := function_of(one)):
                is_bound = isinstance(one, classmethod) or isinstance(thing, kind)
                yield name, function, is_bound and not isinstance(one, staticmethod)


MOST_ELEMENTS = 1000
"""Longer containers hold data."""


def methods_called(name: str) -> list[FunctionType]:
    """Methods of that name of the script's classes, for an object of which the class is not known."""
    kinds = [one for one in list(vars(sys.modules["__main__"]).values()) if isinstance(one, type) and is_users(one)]
    found = (function_of(vars(kind).get(name)) for kind in dict.fromkeys(kinds))
    return [one for one in found if is_own(one)]
