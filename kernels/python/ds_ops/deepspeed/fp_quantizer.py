"""The functions of deepspeed.ops.fp_quantizer.fp_quantizer_op."""

import itertools

import torch

_ds = torch.ops.ds
_calls = itertools.count()


def _mantissa(bits, mantissa):
    # DeepSpeed's callers say 4 bits of mantissa for the 12-bit format, its kernels use 7.
    return 7 if bits == 12 else mantissa


def quantize(out, val, group_size, stochastic_rounding, q_bits, q_mantisa_bits):
    seed = torch.initial_seed() & (2**63 - 1) if stochastic_rounding else 0
    offset = next(_calls) if stochastic_rounding else 0
    _ds.fp_quantize_(val, out, group_size, q_bits, _mantissa(q_bits, q_mantisa_bits),
                     bool(stochastic_rounding), seed, offset)
    return out


def dequantize(val, val_q, group_size, q_mantisa_bits, q_exponent_bits):
    bits = 1 + q_mantisa_bits + q_exponent_bits
    _ds.fp_dequantize_(val_q, val, group_size, bits, _mantissa(bits, q_mantisa_bits))


def selective_dequantize(val, val_q, indexes, group_size, q_mantisa_bits, q_exponent_bits):
    bits = 1 + q_mantisa_bits + q_exponent_bits
    _ds.fp_selective_dequantize_(val_q, indexes, val, group_size, bits,
                                 _mantissa(bits, q_mantisa_bits))


def get_scales(out, num_groups):
    """A view of the first float of each row of `out`."""
    floats = out.reshape(-1).view(torch.float32)
    return floats.as_strided((num_groups, 1), (out.stride(0) * out.element_size() // 4, 1))
