"""torchrun's variables: PET_NAME stands for `--name` where that is not given. Kubeflow sets them in its pods.

PyTorchJob (training operator 1) says PET_NNODES, PET_NPROC_PER_NODE, and PET_NODE_RANK with PET_MASTER_ADDR, or with an
elastic policy PET_RDZV_ENDPOINT. Trainer 2 says PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and
PET_MASTER_PORT.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.nodes.place import Told

NAME = "torchrun's PET_*"


def told(variables: Mapping[str, str]) -> Told:
    """The options that the variables stand for; an empty one counts as not set."""

    def of(name: str) -> str | None:
        return variables.get(f"PET_{name}") or None

    return Told(
        nnodes=of("NNODES"),
        node_rank=of("NODE_RANK"),
        rdzv_endpoint=of("RDZV_ENDPOINT"),
        rdzv_id=of("RDZV_ID"),
        rdzv_backend=of("RDZV_BACKEND"),
        rdzv_conf=of("RDZV_CONF"),
        local_addr=of("LOCAL_ADDR"),
        master_addr=of("MASTER_ADDR"),
        master_port=of("MASTER_PORT"),
        names=("PET_", "_"),
    )
