"""The functions of deepspeed.ops.transformer.stochastic_transformer_op: those of transformer.

DeepSpeed's gives up that a run repeats, for speed. Here that would gain nothing: gradients are
summed without atomics, and dropouts follow from a counter. So nothing is given up.
"""

from .transformer import (backward_fp16, backward_fp32,  # noqa: F401
                          create_transformer_layer_fp16, create_transformer_layer_fp32,
                          forward_fp16, forward_fp32)
