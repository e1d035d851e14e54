"""`dp`: torch's DataParallel. One rank, with a replica of the model for each device.

forward(batch):  scatter -> replicas on threads -> gather       data_parallel, split_forward
"""
