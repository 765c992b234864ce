"""The functions of deepspeed.ops.lion.cpu_lion_op, of its current and earlier releases."""

import torch

# Without the frame of Python that an overload's own call adds, where it can be had.
_step = getattr(torch.ops.ds.cpu_lion_step.tensor, "_op", torch.ops.ds.cpu_lion_step.tensor)
_known = set()
_packed = {}  # Of each optimizer: the numbers of its last call, and their tensor.


def create_lion(optimizer_id, alpha=1e-3, betta1=0.9, betta2=0.999, weight_decay=0,
                should_log=False):
    _known.add(optimizer_id)
    return 0


def destroy_lion(optimizer_id):
    _known.discard(optimizer_id)
    _packed.pop(optimizer_id, None)
    return 0


def _pack(optimizer_id, numbers):
    if optimizer_id not in _known:
        raise RuntimeError(
            f"cpu_lion: there is no optimizer {optimizer_id}; create_lion makes it")
    packed = (numbers, torch.tensor(numbers, dtype=torch.float64, device="cpu"))
    _packed[optimizer_id] = packed
    return packed


def lion_update(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg):
    numbers = (lr, beta1, beta2, weight_decay)
    # The same for all tensors of a step, so packed once.
    packed = _packed.get(optimizer_id)
    if packed is None or packed[0] != numbers:
        packed = _pack(optimizer_id, numbers)
    _step(params, grads, exp_avg, packed[1])
    return 0


def lion_update_copy(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg,
                     gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    lion_update(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg)
    gpu_params.copy_(params)
    return 0
