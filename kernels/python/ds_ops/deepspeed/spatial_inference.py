"""The functions of deepspeed.ops.spatial.spatial_inference_op.

Images are [N, C, H, W] in channels-last memory, or [N, pixels, C].
"""

import torch

_ds = torch.ops.ds


def _image(x):
    """[N, pixels, C] as what it is in memory, [N, C, pixels, 1]."""
    return x.transpose(1, 2).unsqueeze(3) if x.dim() == 3 else x


def _shaped(out, like):
    return out.squeeze(3).transpose(1, 2) if like.dim() == 3 else out


def nhwc_bias_add(input, bias):
    return _shaped(_ds.nhwc_bias_add(_image(input), bias), input)


def nhwc_bias_add_add(input, bias, other):
    return _shaped(_ds.nhwc_bias_add_add(_image(input), bias, _image(other)), input)


def nhwc_bias_add_bias_add(input, bias, other, other_bias):
    return _shaped(_ds.nhwc_bias_add_bias_add(_image(input), bias, _image(other), other_bias),
                   input)
