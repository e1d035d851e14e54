"""all_reduce beside every other library that adds up numbers on one machine: `python -m benchmarks transport --peers`.

contestants (who, how each is started, what is missing) -> meeting (starts them, gives them turns) -> table
slices.hpp, by_mpi.cpp, by_oneccl.cpp, ../in_rank/peers.py: their ranks, which serve short slices over a socket
"""
