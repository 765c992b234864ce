"""The functions of deepspeed.ops.transformer.transformer_op.

What forward returns and backward takes has the places that DeepSpeed's Python gives it, but not
the same contents: no scores and no masks of dropouts are kept. What a dropout drops follows from
the layer's seed, its id and how many calls it had, so a run with the same calls repeats to the bit.

Any sequence length does; callers that fill it up to a multiple of 16 get the same. Both names of a
function take any dtype.
"""

import itertools

import torch

_ds = torch.ops.ds


class _Layer:
    """What a layer was created with, and how many forward calls it had."""

    def __init__(self, layer_id, heads, attention_dropout, hidden_dropout, epsilon, seed, pre_norm,
                 invertible, gelu_checkpoint):
        self.seed = seed
        self.pre_norm, self.invertible, self.gelu_checkpoint = pre_norm, invertible, gelu_checkpoint
        self.numbers = (heads, attention_dropout, hidden_dropout, epsilon)
        self.offsets = itertools.count(layer_id << 40)


_layers = {}


def _layer(layer_id):
    try:
        return _layers[layer_id]
    except KeyError:
        raise ValueError(f"transformer: there is no layer {layer_id}; create_transformer_layer_fp32 "
                         "or _fp16 makes one") from None


def create_transformer_layer_fp32(layer_id, batch_size, hidden_dim, num_heads, intermediate_size,
                                  attn_dropout_ratio, hidden_dropout_ratio, layer_norm_eps, seed,
                                  pre_or_postLayerNorm, test_gemm, attn_dropout_checkpoint,
                                  normalize_invertible, gelu_checkpoint, stochastic_mode):
    if num_heads < 1 or hidden_dim % num_heads != 0:
        raise ValueError(f"transformer: {hidden_dim} hidden elements do not fall into {num_heads} "
                         "heads")
    _layers[layer_id] = _Layer(layer_id, num_heads, max(attn_dropout_ratio, 0.0),
                               max(hidden_dropout_ratio, 0.0), layer_norm_eps, seed,
                               pre_or_postLayerNorm, normalize_invertible, gelu_checkpoint)
    return 0


def forward_fp32(layer_id, input, input_mask, attn_qkvw, attn_qkvb, attn_ow, attn_ob, attn_nw,
                 attn_nb, inter_w, inter_b, output_w, output_b, norm_w, norm_b, training_mode,
                 prelayernorm, attn_dropout_checkpoint, normalize_invertible, gelu_checkpoint):
    layer = _layer(layer_id)
    offset = next(layer.offsets)
    weights = [attn_qkvw, attn_qkvb, attn_ow, attn_ob, attn_nw, attn_nb, inter_w, inter_b, output_w,
               output_b, norm_w, norm_b]
    output, saved = _ds.transformer_layer_forward(
        input, _mask_of(input_mask, input.dtype), weights, *layer.numbers, layer.seed, offset,
        training_mode, prelayernorm, normalize_invertible, gelu_checkpoint)
    (first, qkv, log_sums, context, added, normed, gelu_in, gelu, factors, added_factors) = saved
    # What tells one call's dropouts from another's.
    call = torch.tensor([layer.seed, offset, int(training_mode)])
    return [output, first, qkv, log_sums, log_sums, context, added, normed, gelu, gelu_in, call, call,
            call, added_factors, added_factors, factors, factors]


def backward_fp32(layer_id, grad_output, output, inp_norm, qkv_tf, soft_out, ctx_bufB, attn_o_inp,
                  add_res, ff1_inp, gelu_inp, ff2_inp, attn_prob_dropout_mask,
                  attn_output_dropout_mask, layer_output_dropout_mask, attn_layer_norm_var,
                  attn_layer_norm_mean, layer_norm_var, layer_norm_mean, input, input_mask, attn_qkvw,
                  attn_qkvb, attn_ow, attn_ob, attn_nw, attn_nb, inter_w, inter_b, output_w, output_b,
                  norm_w, norm_b):
    layer = _layer(layer_id)
    seed, offset, training = attn_prob_dropout_mask.tolist()
    saved = [inp_norm, qkv_tf, soft_out, attn_o_inp, add_res, ff1_inp, ff2_inp, gelu_inp,
             layer_norm_var, attn_layer_norm_var]
    weights = [attn_qkvw, attn_qkvb, attn_ow, attn_ob, attn_nw, attn_nb, inter_w, inter_b, output_w,
               output_b, norm_w, norm_b]
    return _ds.transformer_layer_backward(
        grad_output, input, output, _mask_of(input_mask, input.dtype), weights, saved,
        *layer.numbers, seed, offset, bool(training), layer.pre_norm, layer.invertible,
        layer.gelu_checkpoint)


def _mask_of(mask, dtype):
    """[B, 1, 1, S] of that or of [B, S]."""
    if mask is None or mask.dim() < 2:
        return None
    return (mask[:, None, None, :] if mask.dim() == 2 else mask).to(dtype)


create_transformer_layer_fp16 = create_transformer_layer_fp32
forward_fp16 = forward_fp32
backward_fp16 = backward_fp32
