"""What launchers say about this node, one file each: from the environment, without effects.

A task of srun or mpirun      tasks
torchrun's PET_* variables, which Kubeflow's PyTorchJob and Trainer set too      torchrun
Kubernetes: an indexed Job, a LeaderWorkerSet                                    kubernetes
SkyPilot                                                                         skypilot
"""
