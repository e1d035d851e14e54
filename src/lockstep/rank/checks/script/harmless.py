"""Types and functions of libraries by what they keep between two steps: data for `script_state`.

Names are those of modules and classes, `module.Class`; a module's name alone means all that is below it.
"""

from __future__ import annotations

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

NOT_CALLED = frozenset(
    "__delattr__ __init__ __new__ __del__ __post_init__ __init_subclass__ __reduce__ __setattr__ __setstate__".split()
)
"""Methods that no loop calls by itself."""
