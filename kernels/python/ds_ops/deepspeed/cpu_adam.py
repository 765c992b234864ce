"""The functions of deepspeed.ops.adam.cpu_adam_op, of its current and of its earlier releases.

DeepSpeed keeps an optimizer's numbers on the C++ side under an id; here the only one that a call
does not bring along is which of Adam and AdamW it is.
"""

import torch

_ds = torch.ops.ds
# Without the frame of Python that an overload's own call adds, where it can be had.
_step = getattr(_ds.cpu_adam_step.tensor, "_op", _ds.cpu_adam_step.tensor)
_adamw = {}
_packed = {}  # Of each optimizer: the numbers of its last call, and their tensor.


def create_adam(optimizer_id, alpha=1e-3, betta1=0.9, betta2=0.999, eps=1e-8, weight_decay=0,
                adamw_mode=True, should_log=False):
    _adamw[optimizer_id] = bool(adamw_mode)
    _packed.pop(optimizer_id, None)
    return 0


def destroy_adam(optimizer_id):
    _adamw.pop(optimizer_id, None)
    _packed.pop(optimizer_id, None)
    return 0


def _adamw_of(optimizer_id):
    if optimizer_id not in _adamw:
        raise RuntimeError(f"cpu_adam: there is no optimizer {optimizer_id}; create_adam makes it")
    return _adamw[optimizer_id]


def _pack(optimizer_id, numbers):
    step, *floats, bias_correction = numbers
    adamw = _adamw_of(optimizer_id)
    packed = (numbers, torch.tensor([step, *floats, adamw, bool(bias_correction)],
                                    dtype=torch.float64, device="cpu"))
    _packed[optimizer_id] = packed
    return packed


def adam_update(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                params, grads, exp_avg, exp_avg_sq):
    numbers = (step, lr, beta1, beta2, epsilon, weight_decay, bias_correction)
    # The same for all tensors of a step, so packed once.
    packed = _packed.get(optimizer_id)
    if packed is None or packed[0] != numbers:
        packed = _pack(optimizer_id, numbers)
    _step(params, grads, exp_avg, exp_avg_sq, packed[1])
    return 0


def adam_rollback(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                  params, grads, exp_avg, exp_avg_sq):
    _ds.cpu_adam_rollback([params], [grads], [exp_avg], [exp_avg_sq], step=step, lr=lr,
                          beta1=beta1, beta2=beta2, eps=epsilon, weight_decay=weight_decay,
                          adamw=_adamw_of(optimizer_id), bias_correction=bool(bias_correction))
    return 0


def adam_update_copy(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                     params, grads, exp_avg, exp_avg_sq, gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    adam_update(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                params, grads, exp_avg, exp_avg_sq)
    gpu_params.copy_(params)
    return 0
