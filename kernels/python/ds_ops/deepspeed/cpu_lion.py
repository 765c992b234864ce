"""The functions of deepspeed.ops.lion.cpu_lion_op, of its current and of its earlier releases."""

import torch

_ds = torch.ops.ds
_known = set()


def create_lion(optimizer_id, alpha=1e-3, betta1=0.9, betta2=0.999, weight_decay=0,
                should_log=False):
    _known.add(optimizer_id)
    return 0


def destroy_lion(optimizer_id):
    _known.discard(optimizer_id)
    return 0


def lion_update(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg):
    if optimizer_id not in _known:
        raise RuntimeError(f"cpu_lion: there is no optimizer {optimizer_id}; create_lion makes it")
    _ds.cpu_lion_step([params], [grads], [exp_avg], lr=lr, beta1=beta1, beta2=beta2,
                      weight_decay=weight_decay)
    return 0


def lion_update_copy(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg,
                     gpu_params):
    """Of releases up to 0.16: the step, and its result on the GPU too."""
    lion_update(optimizer_id, step, lr, beta1, beta2, weight_decay, params, grads, exp_avg)
    gpu_params.copy_(params)
    return 0
