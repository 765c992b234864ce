"""The functions of deepspeed.ops.adam.cpu_adam_op, of its current and of its earlier releases.

DeepSpeed keeps an optimizer's numbers on the C++ side under an id; here the only one that a call
does not bring along is which of Adam and AdamW it is.
"""

import torch

_ds = torch.ops.ds
_adamw = {}


def create_adam(optimizer_id, alpha=1e-3, betta1=0.9, betta2=0.999, eps=1e-8, weight_decay=0,
                adamw_mode=True, should_log=False):
    _adamw[optimizer_id] = bool(adamw_mode)
    return 0


def destroy_adam(optimizer_id):
    _adamw.pop(optimizer_id, None)
    return 0


def _call(function, optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
          params, grads, exp_avg, exp_avg_sq):
    if optimizer_id not in _adamw:
        raise RuntimeError(f"cpu_adam: there is no optimizer {optimizer_id}; create_adam makes it")
    function([params], [grads], [exp_avg], [exp_avg_sq], step=step, lr=lr, beta1=beta1,
             beta2=beta2, eps=epsilon, weight_decay=weight_decay, adamw=_adamw[optimizer_id],
             bias_correction=bool(bias_correction))
    return 0


def adam_update(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                params, grads, exp_avg, exp_avg_sq):
    return _call(_ds.cpu_adam_step, optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay,
                 bias_correction, params, grads, exp_avg, exp_avg_sq)


def adam_rollback(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                  params, grads, exp_avg, exp_avg_sq):
    return _call(_ds.cpu_adam_rollback, optimizer_id, step, lr, beta1, beta2, epsilon,
                 weight_decay, bias_correction, params, grads, exp_avg, exp_avg_sq)


def adam_update_copy(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                     params, grads, exp_avg, exp_avg_sq, gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    adam_update(optimizer_id, step, lr, beta1, beta2, epsilon, weight_decay, bias_correction,
                params, grads, exp_avg, exp_avg_sq)
    gpu_params.copy_(params)
    return 0
