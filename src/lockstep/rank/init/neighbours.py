"""Which ranks are on this node, as all ranks tell each other when they join; nothing is guessed from counts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from torch.distributed.distributed_c10d import Store

from lockstep.protocol.journal.waiting_note import waits
from lockstep.protocol.layout.nodes import Nodes, nodes_of
from lockstep.protocol.tasks.task import Task
from lockstep.rank.transport.local.nodes_store import told_by_all
from lockstep.rank.transport.local.process import RankProcess


def node_name(task: Task | None, variables: Mapping[str, str] = os.environ) -> str:
    """A name of this rank's node: what the launcher says, and the machine, because memory is shared on one machine only.

    Args:
        task: of srun or mpirun, which this rank is.
        variables: its environment.
    """
    here = RankProcess.here()
    said = variables.get("GROUP_RANK") if task is None else task.rank - task.local_rank
    return json.dumps([said, here.boot, here.process_names])


def learn_nodes(store: Store, rank: int, world_size: int, name: str) -> Nodes | None:
    """Tell the others on which node this rank is, and hear the same of them. Collective: call it on every rank.

    None where a node's ranks are not neighbours, the same on every rank.
    """
    store.set(f"node of {rank}", name)
    with waits("the ranks' nodes", [other for other in range(world_size) if other != rank]):
        told = told_by_all(store, [f"node of {other}" for other in range(world_size)])
    return nodes_of([name.decode() for name in told])
