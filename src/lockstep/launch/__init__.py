"""Start, watch and stop the ranks of a run on one node. Plain Python: nothing here imports torch.

`launcher` is the entrance. It asks `nursery_handle` for a nursery (`nursery`: a process that imports torch once and
forks every rank), makes the run folder (`folder`), and lets `supervisor` watch until every rank has ended. What to
send to whom is decided in `stopping`, whose fault it was in `verdict`; both are pure. `report`, `progress`,
`rank_output` and `terminal` say it to a person.
"""
