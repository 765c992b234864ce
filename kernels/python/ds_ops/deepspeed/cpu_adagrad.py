"""The functions of deepspeed.ops.adagrad.cpu_adagrad_op, of its current and earlier releases."""

import torch

_ds = torch.ops.ds
_known = set()


def create_adagrad(optimizer_id, alpha=1e-2, eps=1e-8, weight_decay=0, should_log=False):
    _known.add(optimizer_id)
    return 0


def destroy_adagrad(optimizer_id):
    _known.discard(optimizer_id)
    return 0


def adagrad_update(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq):
    if optimizer_id not in _known:
        raise RuntimeError(
            f"cpu_adagrad: there is no optimizer {optimizer_id}; create_adagrad makes it")
    _ds.cpu_adagrad_step([params], [grads], [exp_avg_sq], lr=lr, eps=epsilon,
                         weight_decay=weight_decay)
    return 0


def adagrad_update_copy(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq,
                        gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    adagrad_update(optimizer_id, step, lr, epsilon, weight_decay, params, grads, exp_avg_sq)
    gpu_params.copy_(params)
    return 0
