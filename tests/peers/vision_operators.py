"""Import it before transformers: torchvision's wheel is built for GPUs, and with torch for CPUs it has none of its operators.

Pictures need none; only their names must be known.
"""

import torch

operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
