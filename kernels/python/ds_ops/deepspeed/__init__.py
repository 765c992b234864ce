"""Modules with the names and arguments of DeepSpeed's op modules, on top of torch.ops.ds.

Each can stand where DeepSpeed imports its own: sys.modules["deepspeed.ops.quantizer.quantizer_op"]
= ds_ops.deepspeed.quantizer, for one. They need the ops to be loaded: import ds_ops does that.
`ds-install --drop-in` puts them there in an installed DeepSpeed.
"""

# Read without running it, too, so literals only. Of each module here: the one of DeepSpeed that it
# stands in for, and the op whose library it needs.
MODULES = {
    "async_io": ("deepspeed.ops.aio.async_io_op", "async_io"),
    "cpu_adagrad": ("deepspeed.ops.adagrad.cpu_adagrad_op", "cpu_adagrad"),
    "cpu_adam": ("deepspeed.ops.adam.cpu_adam_op", "cpu_adam"),
    "cpu_lion": ("deepspeed.ops.lion.cpu_lion_op", "cpu_lion"),
    "deepspeed_ccl_comm": ("deepspeed.ops.comm.deepspeed_ccl_comm_op", "ccl_comm"),
    "deepspeed_shm_comm": ("deepspeed.ops.comm.deepspeed_shm_comm_op", "shm_comm"),
    "evoformer_attn": ("deepspeed.ops.evoformer_attn_op", "evoformer_attn"),
    "fp_quantizer": ("deepspeed.ops.fp_quantizer.fp_quantizer_op", "fp_quantizer"),
    "fused_adam": ("deepspeed.ops.adam.fused_adam_op", "fused_adam"),
    "fused_lamb": ("deepspeed.ops.lamb.fused_lamb_op", "fused_lamb"),
    "fused_lion": ("deepspeed.ops.lion.fused_lion_op", "fused_lion"),
    "pin_memory": ("deepspeed.ops.pin_memory.pin_memory_op", "async_io"),
    "quantizer": ("deepspeed.ops.quantizer.quantizer_op", "quantizer"),
    "random_ltd": ("deepspeed.ops.random_ltd_op", "random_ltd"),
    "spatial_inference": ("deepspeed.ops.spatial.spatial_inference_op", "spatial_inference"),
    "stochastic_transformer": ("deepspeed.ops.transformer.stochastic_transformer_op", "transformer"),
    "transformer": ("deepspeed.ops.transformer.transformer_op", "transformer"),
    "transformer_inference": ("deepspeed.ops.transformer.inference.transformer_inference_op",
                              "transformer_inference"),
    "utils": ("deepspeed.ops.utils_op", "utils"),
}
