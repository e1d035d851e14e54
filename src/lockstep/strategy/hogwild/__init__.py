"""`hogwild`: parameters and buffers lie in memory that all ranks write to, without locks (`pages`).

Everything else is a replica of one rank (`..replica`); see docs/design/0008.
"""
