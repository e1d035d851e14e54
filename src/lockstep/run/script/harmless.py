"""Types and functions of libraries by what they keep between two steps: data for `script_state`.

Names are those of modules and classes, `module.Class`; a module's name alone means all that is below it.
"""

from __future__ import annotations

HARMLESS = frozenset(
    """
    PIL _csv.writer _thread abc absl.flags absl.logging addict aim albumentations argparse.Namespace ast
    builtins.classmethod builtins.code builtins.ellipsis builtins.frame builtins.mappingproxy builtins.property
    builtins.staticmethod builtins.traceback builtins.weakref clearml click comet_ml concurrent.futures contextlib
    csv.DictWriter csv.writer dataclasses datasets datetime easydict enum fractions h5py.File h5py._hl hydra inspect
    ipaddress json kornia logging loguru matplotlib ml_collections mlflow multiprocessing neptune numpy.dtype
    numpy.ufunc numpy.vectorize omegaconf operator os.PathLike pandas pathlib platform polars pyarrow re rich scipy
    sentencepiece sklearn string structlog tensorboard tensorboardX threading.Condition threading.Event
    threading.Lock threading.Semaphore threading.Thread threading._RLock tiktoken tokenizers torch.Size
    torch.amp.autocast_mode torch.autocast torch.autograd
    torch.cuda.Event torch.cuda.Stream torch.device torch.distributed torch.distributions torch.dtype torch.finfo
    torch.fx torch.iinfo torch.jit torch.layout torch.memory_format torch.nn.attention torch.nn.utils
    torch.overrides torch.profiler torch.serialization torch.utils.checkpoint torch.utils.data torch.utils.hooks
    torch.utils.tensorboard torchaudio torchvision.datasets torchvision.transforms tqdm transformers typer
    types.GenericAlias types.MappingProxyType types.UnionType typing tyro unittest.mock uuid wandb
    weakref.ReferenceType yacs zoneinfo
    """.split()
)
"""What may be read and called in a loop: nothing that is computed depends on what it keeps from step to step."""

READS = frozenset(
    """
    all any argmax argmin argsort astype clip copy count cumsum decode difference dot elements flatten get hex index
    intersection isdisjoint issubset issuperset item items join keys max mean min most_common nonzero numpy ravel
    repeat reshape round squeeze std sum swapaxes symmetric_difference take tobytes tolist total transpose union
    values var view
    """.split()
)
"""Methods that leave a container or an array as it is."""

MODULE_READS = frozenset(
    """
    buffers children cpu cuda eval extra_repr forward get_buffer get_parameter get_submodule modules named_buffers
    named_children named_modules named_parameters parameters requires_grad_ state_dict to train zero_grad
    """.split()
)
"""Methods that leave a module's weights as they are."""

PURE = frozenset(
    """
    PIL _functools _operator builtins cmath collections copy dataclasses functools hashlib itertools json logging
    math matplotlib numpy operator os pandas pprint random re scipy sklearn statistics string textwrap time torch
    torchvision tqdm transformers wandb zlib
    """.split()
)
"""Packages whose functions leave the containers that they get as they are, but for `WRITERS`."""

WRITERS = frozenset(
    """
    bisect.insort bisect.insort_left bisect.insort_right builtins.delattr builtins.setattr heapq.heapify
    heapq.heappop heapq.heappush heapq.heappushpop heapq.heapreplace numpy.copyto numpy.fill_diagonal numpy.place
    numpy.put numpy.put_along_axis numpy.putmask operator.concat operator.delitem operator.iadd operator.imul
    operator.isub operator.itruediv operator.setitem random.shuffle shuffle torch.swap_tensors vector_to_parameters
    """.split()
)
"""Functions that change what they get first, or second."""

SETTERS = frozenset(
    """
    decimal.getcontext decimal.localcontext decimal.setcontext locale.setlocale numpy.setbufsize numpy.seterr
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
    add append appendleft clear copy_ discard extend extendleft fill insert load_state_dict pop popitem popleft push
    put remove resize reverse rotate setdefault sort step subtract update write
    """.split()
)
"""Methods that change what they are called on, whatever it is; so does one that ends with an underscore."""
