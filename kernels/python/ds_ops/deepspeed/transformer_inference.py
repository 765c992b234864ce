"""The functions of deepspeed.ops.transformer.inference.transformer_inference_op.

Products of matrices are torch's, everything between them is torch.ops.ds. Of each function of a
type there are three: softmax_fp32, softmax_fp16, softmax_bf16, and so on; a tensor's own type
counts, so any of them takes any type.

Results are new tensors, nothing lies in a workspace. softmax_context keeps keys and values between
calls because its interface has no argument for them: for each device, dtype, number of layers and
shape of a head, so that models that differ in one of these do not meet. Who needs more than that
passes caches of his own to torch.ops.ds.cached_attention. A cache grows as it is needed.
"""

import torch
import torch.nn.functional as F

_ds = torch.ops.ds

GELU, RELU, GATED_GELU, GATED_SILU = 1, 2, 3, 4  # ActivationFuncType
_ACTIVATIONS = {GELU: "gelu_tanh", RELU: "relu"}
_GATES = {GATED_GELU: "gelu", GATED_SILU: "silu"}


def _given(tensor):
    """None for what callers pass where there is nothing: torch.empty(1), or None."""
    return tensor if tensor is not None and tensor.dim() > 1 else None


def _gate(activation_type):
    try:
        return _GATES[int(activation_type)]
    except KeyError:
        raise ValueError(f"gated_activation: {activation_type} is not gated; 3 (GELU) and 4 (SiLU) "
                         "are") from None


def _activate(x, bias, activation_type):
    kind = int(activation_type)
    if kind in _GATES:
        return _ds.gated_activation(x, bias, _GATES[kind])
    return _ds.bias_activation(x, bias, _ACTIVATIONS.get(kind, "identity"))


def _product(x, weight, q_scale, q_int8, transposed_mode):
    if q_int8:
        weight = _ds.dequantize_int8(weight, q_scale.reshape(-1).float(), x.dtype)
    return x.matmul(weight.t() if q_int8 or transposed_mode else weight)


# --- Norms and what is element by element --------------------------------------------------------

def layer_norm(input, gamma, beta, epsilon):
    return _ds.layer_norm(input, gamma, beta, epsilon)


def _layer_norm_residual(input, bias, residual, gamma, beta, epsilon):
    return _ds.layer_norm_residual(input, residual, bias, gamma, beta, epsilon)[0]


def layer_norm_residual_store_pre_ln_res(input, bias, residual, gamma, beta, epsilon):
    return list(_ds.layer_norm_residual(input, residual, bias, gamma, beta, epsilon))


def rms_norm(input, gamma, epsilon):
    return _ds.rms_norm(input, gamma, epsilon)


def pre_rms_norm(input, residual, gamma, epsilon):
    return list(_ds.rms_norm_residual(input, residual, gamma, epsilon))


def gated_activation(activation, bias, actFun):
    return _ds.gated_activation(activation, bias, _gate(actFun))


def _written(tensor, write, *args):
    """write(tensor, *args), by way of a copy if tensor is not contiguous: callers pass slices."""
    to = tensor.contiguous()
    write(to, *args)
    return tensor if to is tensor else tensor.copy_(to)


def _vector_add(a, b, gamma):
    """a = gamma·a + b"""
    return _written(a, _ds.residual_add_, b, None, None, None, gamma, False)


def moe_res_matmul(moe_res, coef, output):
    return _written(output, _ds.moe_residual_, moe_res, coef)


def _bias_gelu(input, bias):
    return _ds.bias_activation(input, bias, "gelu_tanh")


def _bias_add(input, bias):
    return _ds.bias_activation(input, bias, "identity")


def _bias_relu(input, bias):
    return _ds.bias_activation(input, bias, "relu")


def _bias_residual(input, residual, bias):
    """input + residual + bias; DeepSpeed's gives the input back as it was."""
    out = residual.clone(memory_format=torch.contiguous_format)
    _ds.residual_add_(out, input, None, None, bias, 1.0, False)
    return out


def _residual_add_bias(hidden_state, residual, attention_output, attention_bias, final_bias,
                       mp_size, mlp_after_attn, add_bias, preln):
    if mlp_after_attn and preln:
        terms = attention_output, attention_bias, final_bias, 1.0 / mp_size, True
    elif mlp_after_attn:
        terms = None, None, final_bias, 1.0, True
    else:
        terms = (attention_output, attention_bias if add_bias else None, final_bias, 1.0 / mp_size,
                 False)
    return _written(residual, _ds.residual_add_, hidden_state, *terms)


# --- Products -------------------------------------------------------------------------------------

def _dequantize_to(dtype):
    def dequantize(weight, qscale, groups):
        return _ds.dequantize_int8(weight, qscale.reshape(-1)[:groups].float(), dtype)
    return dequantize


dequantize_fp32, dequantize_fp16, dequantize_bf16 = map(
    _dequantize_to, (torch.float32, torch.float16, torch.bfloat16))


def _qkv_gemm(input, weight, q_scale, bias, gamma, beta, epsilon, add_bias, q_int8,
              transposed_mode):
    norm = _ds.layer_norm(input, gamma, beta, epsilon)
    out = _product(norm, weight, q_scale, q_int8, transposed_mode)
    return [_bias_add(out, bias) if add_bias else out, norm]


def _rms_qkv_gemm(input, weight, q_scale, gamma, epsilon, q_int8, transposed_mode):
    norm = _ds.rms_norm(input, gamma, epsilon)
    return [_product(norm, weight, q_scale, q_int8, transposed_mode), norm]


def _mlp_gemm(input, residual, input_bias, weight_interm, weight_out, bias, gamma, beta, epsilon,
              preLayerNorm, mlp_after_attn, q_scale, q_scale1, q_int8, activation_type,
              transposed_mode):
    if mlp_after_attn:
        norm, _ = _ds.layer_norm_residual(input, residual, input_bias, gamma, beta, epsilon)
    else:
        norm = _ds.layer_norm(residual, gamma, beta, epsilon)
    hidden = _product(norm, weight_interm, q_scale, q_int8, transposed_mode)
    hidden = _activate(hidden, bias, activation_type)
    return [_product(hidden, weight_out, q_scale1, q_int8, transposed_mode), norm]


def _rms_mlp_gemm(input, residual, weight_interm, weight_out, gamma, epsilon, q_scale, q_scale1,
                  q_int8, activation_type, transposed_mode):
    norm, added = _ds.rms_norm_residual(input, residual, gamma, epsilon)
    residual.copy_(added)
    hidden = _product(norm, weight_interm, q_scale, q_int8, transposed_mode)
    hidden = _activate(hidden, None, activation_type)
    return [_product(hidden, weight_out, q_scale1, q_int8, transposed_mode), residual]


def _vector_matmul(input, weight, async_op, q_scale, q_int8, transposed_mode):
    return _product(input, weight, q_scale, q_int8, transposed_mode)


def _fused_gemm_gelu(input, weight, weight_scale, bias, weight_out, weight_out_scale, q_int8,
                     transposed_mode):
    hidden = _bias_gelu(_product(input, weight, weight_scale, q_int8, transposed_mode), bias)
    return _product(hidden, weight_out, weight_out_scale, q_int8, transposed_mode)


def _einsum_sec_sm_ecm(Q, W):
    """[s, e, c] and [s, m] to [e, c, m]."""
    return torch.einsum("sec,sm->ecm", Q, W)


def _linear_layer(input, weight, bias, add_bias, do_flash_attn, num_heads, transposed_mode):
    out = _product(input, weight, None, False, transposed_mode)
    if add_bias:
        out = _bias_add(out, bias)
    if not do_flash_attn:
        return out
    batch, tokens, size = input.shape[0], input.shape[1], input.shape[2] // num_heads
    heads = out.reshape(batch, tokens, 3, num_heads, size).permute(2, 0, 3, 1, 4)
    padded = size if size % 64 == 0 or size == 32 else _padded_size(size)
    return F.pad(heads, (0, padded - size)).contiguous()


# --- Padding --------------------------------------------------------------------------------------

_PADDED_KEYS = 128


def _padded_size(size):
    return 32 if size < 32 else 64 if size < 64 else 128


def _padded(x, tokens):
    return F.pad(x, (0, _padded_size(x.shape[3]) - x.shape[3], 0, tokens - x.shape[2])).contiguous()


def _add_padding(query, key, value):
    return [_padded(query, query.shape[2]), _padded(key, _PADDED_KEYS), _padded(value, _PADDED_KEYS)]


def _pad_transform(query, key, value, heads, add_padding):
    query, key, value = (x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
                         for x in (query, key, value))
    if add_padding:
        return _add_padding(query, key, value)
    return [x.contiguous() for x in (query, key, value)]


# --- Attention ------------------------------------------------------------------------------------

def _mask_of(mask, dtype, keys):
    """[B, 1 or H, 1 or S, keys] of [B, keys], [B, S, keys] or [B, H, S, keys]."""
    mask = _given(mask)
    if mask is None:
        return None
    while mask.dim() < 4:
        mask = mask.unsqueeze(1)
    return mask[..., :keys].to(dtype)


def _alibi_of(alibi, dtype, batch, heads, keys, head_offset=0, mp_size=1):
    """[B or 1, heads, 1 or S, keys] of [B·heads·mp_size, 1 or S, keys]."""
    alibi = _given(alibi)
    if alibi is None:
        return None
    alibi = alibi.reshape(batch, -1, alibi.shape[-2] if alibi.dim() > 2 else 1, alibi.shape[-1])
    return alibi[:, head_offset:head_offset + heads, :, :keys].to(dtype)


def _softmax(attn_scores, attn_mask, alibi, triangular, recompute, local_attention, window_size,
             async_op, layer_scale, head_offset, mp_size):
    scores = attn_scores.contiguous()
    batch, heads, _, keys = scores.shape
    out = _ds.masked_softmax(
        scores, _mask_of(attn_mask, scores.dtype, keys),
        _alibi_of(alibi, scores.dtype, batch, heads, keys, head_offset, mp_size), layer_scale,
        triangular, window_size if local_attention else 0)
    return attn_scores.copy_(out) if attn_scores.is_contiguous() else out


def apply_rotary_pos_emb(mixed_query, key_layer, rotary_dim, offset, num_heads, rotate_half,
                         rope_theta=10000.0):
    """[B, S, heads·D] each, its memory [B, heads, S, D] as DeepSpeed has it. New tensors."""
    def turned(x):
        x = x.clone(memory_format=torch.contiguous_format)
        heads = x.view(x.shape[0], num_heads, x.shape[1], x.shape[2] // num_heads)
        _ds.rotary_(heads, None, offset, rotary_dim, rotate_half, rope_theta)
        return x
    return [turned(mixed_query), turned(key_layer)]


class _Cache:
    """The keys and values of one layer, and how many tokens there are."""

    def __init__(self):
        self.key = self.value = None
        self.tokens = 0

    def append(self, key, value, room):
        batch, heads, new, size = key.shape
        if self.key is not None and self.key.shape[0] != batch:
            raise ValueError(f"softmax_context: the cache is of {self.key.shape[0]} sequences, these "
                             f"are {batch}; begin with a prompt")
        if self.key is None or self.tokens + new > self.key.shape[2]:
            room = max(room, 2 * self.tokens, self.tokens + new)
            grown = [key.new_zeros(batch, heads, room, size) for _ in range(2)]
            if self.key is not None:
                for to, old in zip(grown, (self.key, self.value)):
                    to[:, :, :self.tokens] = old[:, :, :self.tokens]
            self.key, self.value = grown
        for to, x in ((self.key, key), (self.value, value)):
            to[:, :, self.tokens:self.tokens + new] = x
        self.tokens += new

    def used(self):
        return self.key[:, :, :self.tokens], self.value[:, :, :self.tokens]


_caches = {}
_room = 1024


def _softmax_context(query_key_value, attn_mask, rotary_dim, rotate_half, rotate_every_two, heads,
                     num_kv, norm_factor, triangular, local_attention, window_size, no_masking,
                     layer_id, num_layers, alibi, rope_theta=10000.0, is_prompt=None,
                     token_idx=None, position_ids=None):
    batch, tokens, width = query_key_value.shape
    num_kv = num_kv if num_kv > 0 else heads
    size = width // (heads + 2 * num_kv)
    split = query_key_value.reshape(batch, tokens, heads + 2 * num_kv, size).transpose(1, 2)
    query, key, value = split.split([heads, num_kv, num_kv], dim=1)
    layers = _caches.setdefault(
        (query.device, query.dtype, num_layers, heads, num_kv, size), {})
    if tokens > 1 or layer_id not in layers:  # A prompt: what was before is forgotten.
        layers[layer_id] = _Cache()
    cache = layers[layer_id]
    if rotary_dim > 0:
        query, key = query.clone(), key.clone()
        for x in (query, key):
            _ds.rotary_(x, None, cache.tokens, rotary_dim, rotate_half, rope_theta)
    cache.append(key, value, _room)
    key, value = cache.used()
    keys = cache.tokens
    out = _ds.cached_attention(
        query, key, value, None if no_masking else _mask_of(attn_mask, query.dtype, keys),
        _alibi_of(alibi, query.dtype, batch, heads, keys), norm_factor * norm_factor,
        triangular and tokens > 1, window_size if local_attention else 0)
    return [out, key, value]


def softmax_context_int8(query, prev_key, new_key, attn_mask, prev_value, new_value, heads,
                         norm_factor, merging, triangular, local_attention, window_size,
                         no_masking):
    """query [B, S, heads·D], keys [B, heads·D, T] and values [B, T, heads·D], memory [B, heads, …]."""
    batch, tokens, width = query.shape
    size, keys = width // heads, prev_value.shape[1]
    q = query.reshape(batch, heads, tokens, size)
    k = prev_key.reshape(batch, heads, size, keys).transpose(2, 3)
    v = prev_value.reshape(batch, heads, keys, size)
    new = new_value.shape[1] if new_value is not None and new_value.dim() > 1 else 0
    out = _ds.cached_attention(q, k, v,
                               None if no_masking else _mask_of(attn_mask, q.dtype, keys), None,
                               norm_factor, triangular and new == 0,
                               window_size if local_attention else 0)
    return [out.view(batch, tokens, heads, size).transpose(1, 2).contiguous(), prev_key, prev_value]


def _repeat_kv_cache(source_batch_size, repeats):
    """Each sequence of every cache `repeats` times, in a row."""
    for layers in _caches.values():
        for cache in layers.values():
            if cache.key.shape[0] == source_batch_size:
                cache.key = cache.key.repeat_interleave(repeats, 0)
                cache.value = cache.value.repeat_interleave(repeats, 0)


def _allocate_workspace(hidden_dim, num_heads, prompt_length, batch_size, num_layers, mp_size=1,
                        external_cache=False, rank=0, max_out_tokens=1024, min_out_tokens=1):
    """Only says how many tokens a new cache has room for."""
    global _room
    _room = max(int(max_out_tokens), int(prompt_length), 1)


def reset_cache():
    for layers in _caches.values():
        for cache in layers.values():
            cache.tokens = 0


def release_workspace():
    _caches.clear()


def retake_workspace():
    return True


def _export(names):
    """softmax_fp32, … of _softmax, …."""
    here = globals()
    for dtype in ("fp32", "fp16", "bf16"):
        for name in names:
            here[f"{name}_{dtype}"] = here["_" + name]


_export(("softmax", "softmax_context", "bias_gelu", "bias_add", "bias_relu", "bias_residual",
         "qkv_gemm", "rms_qkv_gemm", "mlp_gemm", "rms_mlp_gemm", "vector_matmul", "linear_layer",
         "fused_gemm_gelu", "residual_add_bias", "einsum_sec_sm_ecm", "add_padding", "pad_transform",
         "repeat_kv_cache", "allocate_workspace"))

# DeepSpeed calls it by this name, and a star import leaves out what begins with an underscore.
__all__ = [name for name in dir() if not name.startswith("_")] + ["_vector_add"]
