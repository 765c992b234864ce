"""The function of deepspeed.ops.lamb.fused_lamb_op."""

import math

import torch

_ds = torch.ops.ds


def lamb(p, p_copy, m, v, g, lr, beta1, beta2, max_coeff, min_coeff, eps, grad_scale, step, mode,
         bias_correction, decay):
    """One step of one parameter; returns its trust ratio, a tensor of one element.

    Mode 0 has eps under the root. p_copy, of 16 bits, receives the new parameter; one of 32 bits or
    without elements is left alone. DeepSpeed corrects the bias in the step, not in the direction,
    so the ratio is of what the averages are. bfloat16 and 16-bit parameters work too.
    """
    if bias_correction == 1:
        lr = lr * math.sqrt(1 - beta2 ** step) / (1 - beta1 ** step)
    copies = [p_copy] if p_copy.numel() > 0 and p_copy.element_size() == 2 else []
    ratio = torch.ones(1, dtype=torch.float32, device=p.device)
    _ds.fused_lamb_step([p], [g], [m], [v], copies, step=step, lr=lr, beta1=beta1, beta2=beta2,
                        eps=eps, weight_decay=decay, min_ratio=min_coeff, max_ratio=max_coeff,
                        bias_correction=False, eps_inside_sqrt=mode == 0, grad_scale=grad_scale,
                        trust_ratios=ratio)
    return ratio
