"""`hogwild`: parameters and buffers are in memory that all ranks write to, without locks (`hogwild`).

Everything else is a one-rank replica (`..replica`); see docs/design/0008.
"""
