"""The training loop that messages show."""

RIGHT_FORM = (
    "for step in run.steps(loader):\n    for batch in step:\n        run.backward(loss_of(batch))\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)
