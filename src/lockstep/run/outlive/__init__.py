"""What a run does so that a dead rank can be replaced in the middle of a step, with nothing computed again.

    every rank:      begin, enter_body, enter_step, ...     rescue       where the run is, and what it has heard
    survivor:        objection, leave                       rescue       the state of the step's beginning, in memory
    replacement:     begin                                  rescue       goes on from there, as from a saved state

`transport.outliving` makes the exchange again that lost the rank, `rank.rejoin` meets the replacement, the launcher
decides (`launch.recovery`). See docs/design/0021.
"""
