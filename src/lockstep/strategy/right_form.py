"""The training loops that messages show."""

RIGHT_FORM = (
    "for step in run.steps(loader):\n    for batch in step:\n        run.backward(loss_of(batch))\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)

ORDERED_FORM = (
    "for step in run.steps(loader):\n    step.backward(lambda batch: loss_of(model, batch))  # calls the model once\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)
"""For strategies that do the lanes' forwards and backwards in their own order."""
