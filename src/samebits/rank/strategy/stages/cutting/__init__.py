"""How a model is cut into stages: by what its forward actually does in the first lane.

watch the lane that calls the model first      first_lane, module_marks (what the call changed)
    every operation, every call of a layer     watch (and what it costs), trace
where it may be cut, and what is between       trace
the cut, balanced by measured costs            model_cut
"""
