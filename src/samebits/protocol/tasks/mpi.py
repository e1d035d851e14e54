"""What Open MPI's and MPICH's mpirun say to the processes that they start. MPI itself is not used.

Neither says on which hosts the others are. Intel MPI and MVAPICH are MPICH's children and say the same as it.
"""

from __future__ import annotations

from collections.abc import Mapping

from samebits.protocol.tasks.task import Task

OPEN_MPI, MPICH = "Open MPI", "MPICH"
_WORDS = {
    OPEN_MPI: (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    MPICH: ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""By name: the variables of rank, size, local rank and local size. All four must be there: one alone is a left-over."""
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")

SERVERS = (
    *("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "orterun", "orted", "prterun", "prted", "prte"),
    *("hydra_pmi_proxy", "hydra_bstrap_pr", "mpiexec.hydra"),
)
"""Names of the processes that start tasks on a node, as Linux cuts them."""
_BOUND = "OMPI_MCA_orte_bound_at_launch"
_WISHES = ("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_hwloc_base_cpu_set")
_MAPPING = "OMPI_MCA_rmaps_base_mapping_policy"


def is_bound_unasked(variables: Mapping[str, str]) -> bool:
    """Whether Open MPI bound this process to a core (or a socket) by its own default: nobody asked for it.

    A core is right for a program of one thread; ranks of torch and their loader workers want more.
    """
    asked = any(name in variables for name in _WISHES) or "PE=" in variables.get(_MAPPING, "").upper()
    return variables.get(_BOUND) == "1" and not asked


def find(variables: Mapping[str, str]) -> Task | None:
    """The task of an mpirun that this process is; None where variables are missing or contradict each other."""
    for launcher, names in _WORDS.items():
        try:
            rank, size, local_rank, local_size = (int(variables[name]) for name in names)
        except (KeyError, ValueError):
            continue
        if 0 <= local_rank < local_size <= size and local_rank <= rank < size:
            # Only Open MPI names its job.
            job = next((variables[name] for name in _JOBS if name in variables), "") if launcher == OPEN_MPI else ""
            nodes = _nodes(variables) if launcher == OPEN_MPI else None
            if local_size == size:
                nodes = 1
            # With one task per node the rank is the node's number; otherwise mpirun does not say which node this is.
            node = 0 if nodes == 1 else rank if local_size == 1 and nodes in (None, size) else None
            return Task(launcher, "mpirun", rank, size, local_rank, local_size, nodes, node, (), job)
    return None


def _nodes(variables: Mapping[str, str]) -> int | None:
    """Open MPI 4 says how many nodes it uses; Open MPI 5 does not."""
    text = variables.get("OMPI_MCA_orte_num_nodes", "")
    return int(text) if text.isdecimal() and int(text) else None
