"""What SyncBatchNorm calls, which torch has for CUDA only; statistics are over all dimensions but the second."""


def _rows(values):
    return values.transpose(0, 1).flatten(1)


def _wide(values, like):
    return values.view(1, -1, *[1] * (like.dim() - 2))


def stats(values, eps):
    rows = _rows(values)
    return rows.mean(1), (rows.var(1, correction=0) + eps).rsqrt()


def gather_stats(_values, means, inverses, running_mean, running_var, momentum, eps, counts):
    counts = counts.view(-1, 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    squares = ((inverses**-2 - eps + (means - mean) ** 2) * counts).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(squares / (total - 1), alpha=momentum)
    return mean, (squares / total + eps).rsqrt()


def normalised(values, weight, bias, mean, inverse, _eps):
    out = (values - _wide(mean, values)) * _wide(inverse, values)
    out = out if weight is None else out * _wide(weight, values)
    return out if bias is None else out + _wide(bias, values)


def backward_sums(gradient, values, mean, inverse, _weight, _input, _weights, _biases):
    sums = _rows(gradient).sum(1)
    products = _rows(gradient * (values - _wide(mean, values))).sum(1)
    return sums, products, products * inverse, sums.clone()


def backward(gradient, values, mean, inverse, weight, sums, products, counts):
    total = counts.sum()
    centred = values - _wide(mean, values)
    out = gradient - _wide(sums / total, values) - centred * _wide(inverse**2 * products / total, values)
    return out * _wide(inverse if weight is None else inverse * weight, values)


def put_into(torch):
    """Register them; the library has to be kept."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    functions = {
        "batch_norm_stats": stats,
        "batch_norm_gather_stats_with_counts": gather_stats,
        "batch_norm_elemt": normalised,
        "batch_norm_backward_reduce": backward_sums,
        "batch_norm_backward_elemt": backward,
    }
    for name, function in functions.items():
        library.impl(name, function)
    return library
