"""What is known about each kind of trouble: what is seen, why, and what to do.

    catalogue    all of them, a table
    end          how a run failed          -> its finding
    stall        ranks that are waited for -> their finding

The terminal, `lockstep diagnose` and docs/findings/ take their words from here. Pure.
"""
