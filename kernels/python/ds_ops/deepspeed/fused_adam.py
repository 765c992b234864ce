"""The function of deepspeed.ops.adam.fused_adam_op."""

import torch

_ds = torch.ops.ds


def multi_tensor_adam(chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, epsilon, step, mode,
                      bias_correction, weight_decay):
    """tensor_lists are gradients, parameters and both averages; mode 0 is Adam, 1 is AdamW.

    As there, chunk_size and noop_flag change nothing in the result.
    """
    grads, params, exp_avgs, exp_avg_sqs = tensor_lists
    _ds.fused_adam_step(params, grads, exp_avgs, exp_avg_sqs, [], step=step, lr=lr, beta1=beta1,
                        beta2=beta2, eps=epsilon, weight_decay=weight_decay, adamw=mode == 1,
                        bias_correction=bool(bias_correction))
