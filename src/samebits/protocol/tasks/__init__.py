"""Processes that srun or mpirun started: which one this is, of how many, on which hosts. Pure, from the environment.

a task, and what follows from it        task
what SLURM says                         slurm
what Open MPI and MPICH say             mpi
which of them is nearest                innermost
where they meet, one rank each          meeting
and what they must not be around        innermost
"""
