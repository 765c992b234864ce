"""The functions of deepspeed.ops.quantizer.quantizer_op. The ops take f32, f16 and bf16 alike."""

import enum
import itertools

import torch

_ds = torch.ops.ds
_calls = itertools.count()


class QuantizationType(enum.Enum):
    Symmetric = 0
    Asymmetric = 1


Symmetric = QuantizationType.Symmetric
Asymmetric = QuantizationType.Asymmetric


def _is_symmetric(quant_type):
    return QuantizationType(quant_type) is Symmetric


def _fake(symmetric, stochastic):
    def function(vals, groups, bits):
        offset = next(_calls) if stochastic else 0
        seed = torch.initial_seed() & (2**63 - 1) if stochastic else 0
        _ds.fake_quantize_(vals, groups, bits, symmetric, stochastic, seed, offset)
        return vals
    return function


ds_quantize_fp32 = ds_quantize_fp16 = _fake(True, False)
ds_sr_quantize_fp32 = ds_sr_quantize_fp16 = _fake(True, True)
ds_quantize_asym_fp32 = ds_quantize_asym_fp16 = _fake(False, False)
ds_sr_quantize_asym_fp32 = ds_sr_quantize_asym_fp16 = _fake(False, True)


def quantize(input_vals, groups, numBits, quantType):
    return list(_ds.quantize(input_vals, groups, numBits, _is_symmetric(quantType)))


def dequantize(quantized_data, params, groups, num_bits, quant_type):
    return _ds.dequantize(quantized_data, params, groups, num_bits, _is_symmetric(quant_type),
                          torch.float16)


def dequantize_fp32(quantized_data, params, groups, num_bits, quant_type):
    return _ds.dequantize(quantized_data, params, groups, num_bits, _is_symmetric(quant_type),
                          torch.float32)


def dequantize_int4_to_half_experimental(data_in, scale_buffer, min_val_buffer, num_group,
                                         group_size):
    return _ds.dequantize_int_to_half(data_in, scale_buffer, min_val_buffer, num_group, group_size,
                                      4)


def dequantize_int8_to_half_experimental(data_in, scale_buffer, min_val_buffer, num_group,
                                         group_size):
    return _ds.dequantize_int_to_half(data_in, scale_buffer, min_val_buffer, num_group, group_size,
                                      8)


def swizzle_quant(input_vals, groups, num_bits, quant_type, pipeline_size, nodes, devices_per_node):
    return list(_ds.swizzle_quant(input_vals, groups, num_bits, _is_symmetric(quant_type),
                                  pipeline_size, nodes, devices_per_node))


def quantized_reduction(input_vals, input_scales, in_groups, out_groups, num_bits, quant_type,
                        devices_per_node):
    return list(_ds.quantized_reduction(input_vals, input_scales, in_groups, out_groups, num_bits,
                                        _is_symmetric(quant_type), devices_per_node))


def loco_swizzle_quant(input_vals, error_feedback, err_beta, groups, num_bits, quant_type,
                       pipeline_size, nodes, devices_per_node):
    return list(_ds.loco_swizzle_quant(input_vals, error_feedback, err_beta, groups, num_bits,
                                       _is_symmetric(quant_type), pipeline_size, nodes,
                                       devices_per_node))


def loco_quantized_reduction(input_vals, input_scales, error_feedback, err_beta, in_groups,
                             out_groups, num_bits, quant_type, devices_per_node):
    return list(_ds.loco_quantized_reduction(input_vals, input_scales, error_feedback, err_beta,
                                             in_groups, out_groups, num_bits,
                                             _is_symmetric(quant_type), devices_per_node))
