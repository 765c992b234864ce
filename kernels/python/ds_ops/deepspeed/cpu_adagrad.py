"""The functions of deepspeed.ops.adagrad.cpu_adagrad_op, of its current and earlier releases."""

import torch

# Without the frame of Python that an overload's own call adds, where it can be had.
_step = getattr(torch.ops.ds.cpu_adagrad_step.tensor, "_op", torch.ops.ds.cpu_adagrad_step.tensor)
_known = set()
_packed = {}  # Of each optimizer: the numbers of its last call, and their tensor.


def create_adagrad(optimizer_id, alpha=1e-2, eps=1e-8, weight_decay=0, should_log=False):
    _known.add(optimizer_id)
    return 0


def destroy_adagrad(optimizer_id):
    _known.discard(optimizer_id)
    _packed.pop(optimizer_id, None)
    return 0


def _pack(optimizer_id, numbers):
    if optimizer_id not in _known:
        raise RuntimeError(
            f"cpu_adagrad: there is no optimizer {optimizer_id}; create_adagrad makes it")
    packed = (numbers, torch.tensor(numbers, dtype=torch.float64, device="cpu"))
    _packed[optimizer_id] = packed
    return packed


def adagrad_update(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq):
    numbers = (lr, epsilon, weight_decay)
    # The same for all tensors of a step, so packed once.
    packed = _packed.get(optimizer_id)
    if packed is None or packed[0] != numbers:
        packed = _pack(optimizer_id, numbers)
    _step(params, grads, exp_avg_sq, packed[1])
    return 0


def adagrad_update_copy(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq,
                        gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    adagrad_update(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq)
    gpu_params.copy_(params)
    return 0
