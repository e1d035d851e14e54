"""Following a forward without the layers of other stages.

a layer of another stage       ghost: followed once, then only shapes
its result                     meta_placeholder: shape and dtype, and an error where values are needed
operations on such results     ghost: on the meta device
"""
