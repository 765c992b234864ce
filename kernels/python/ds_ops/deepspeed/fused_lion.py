"""The function of deepspeed.ops.lion.fused_lion_op."""

import torch

_ds = torch.ops.ds


def multi_tensor_lion(chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, step, weight_decay):
    """tensor_lists are gradients, parameters and averages.

    As there, chunk_size, noop_flag and step change nothing in the result. sign(0) is 0, where
    DeepSpeed's kernel takes it for 1.
    """
    grads, params, exp_avgs = tensor_lists
    _ds.fused_lion_step(params, grads, exp_avgs, [], lr=lr, beta1=beta1, beta2=beta2,
                        weight_decay=weight_decay)
