"""The functions of deepspeed.ops.random_ltd_op."""

import torch

_ds = torch.ops.ds


def token_sort_(unsorted_token_ids, original_tokens):
    _ds.token_sort_(unsorted_token_ids, original_tokens)
    return unsorted_token_ids


def token_gather(activations, sorted_indices, batch_first):
    return _ds.token_gather(activations, sorted_indices, batch_first)


def token_scatter_(all_activations, layer_activations, sorted_indices, batch_first):
    _ds.token_scatter_(all_activations, layer_activations, sorted_indices, batch_first)
    return all_activations


def mask_gather_bert(dense_mask, sorted_indices):
    return _ds.mask_gather_bert(dense_mask, sorted_indices)


def mask_gather_gpt(dense_mask, truncated_seq_len):
    return _ds.mask_gather_gpt(dense_mask, truncated_seq_len)
