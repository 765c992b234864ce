"""Modules with the names and arguments of DeepSpeed's op modules, on top of torch.ops.ds.

Each can stand where DeepSpeed imports its own: sys.modules["deepspeed.ops.quantizer.quantizer_op"]
= ds_ops.deepspeed.quantizer, for one. They need the ops to be loaded: import ds_ops does that.
"""
