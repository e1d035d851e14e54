"""Following a forward without the layers that another stage has.

a layer of another stage                 ghost_layer: followed once, then only shapes
its result                               absent: shape and dtype, and a sentence where values are needed
operations on such results               ghost: on the meta device
"""
