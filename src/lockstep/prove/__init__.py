"""`lockstep verify`: run one script in several ways and compare every bit. Plain Python, without torch.

The ranks record hashes (`lockstep.run.witness`); here they are read (`evidence`), compared (`comparison`), explained
(`plain`, `values`, `cause`) and shown (`report`). `verify` is the order in which this happens.
"""
