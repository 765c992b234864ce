"""The functions of deepspeed.ops.evoformer_attn_op.

q, k, v and o are [B, N, L, H, D]; lse and delta [B·N, H, at least L]. A bias, or a gradient of one,
without elements is not there. Gradients of biases are float32.
"""

import torch

_ds = torch.ops.ds


def _given(bias):
    return bias if bias is not None and bias.numel() > 0 else None


def _rows(rows, q):
    """[B·N, H, at least L] as [B, N, H, L]."""
    batch, sequences, length, heads = q.shape[:4]
    return rows.view(batch, sequences, heads, -1)[..., :length]


def attention(q, k, v, bias1, bias2, o, lse):
    _ds.evoformer_attn_out_(q, k, v, _given(bias1), _given(bias2), o, _rows(lse, q))


def attention_bwd(go, q, k, v, o, lse, delta, bias1, bias2, gq, gk, gv, gb1, gb2):
    _ds.evoformer_attn_backward_out_(go, q, k, v, o, _rows(lse, q), _rows(delta, q), _given(bias1),
                                     _given(bias2), gq, gk, gv, _given(gb1), _given(gb2))
