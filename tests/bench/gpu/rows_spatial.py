"""Sums of channels-last images and biases, at the sizes of a diffusion model's first blocks."""

import torch

from bench import deepspeed, row, sets_for

ds = torch.ops.ds


def sums(name, dtype, compiled=None, shape=(16, 320, 128, 128)):
    size = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()

    def make():
        calls = []
        for _ in range(sets_for(2 * size)):
            x, y = (torch.randn(shape, device="cuda").to(dtype).to(
                memory_format=torch.channels_last) for _ in range(2))
            b, d = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(2))
            arguments = {"nhwc_bias_add": (x, b), "nhwc_bias_add_add": (x, b, y),
                         "nhwc_bias_add_bias_add": (x, b, y, d)}[name]
            function = getattr(ds, name)
            if compiled is not None:
                function = PLAIN[name]
                if compiled == "deepspeed":
                    function = getattr(deepspeed("spatial_inference"), name)
                elif compiled:
                    function = torch.compile(function)
            calls.append(lambda f=function, a=arguments: f(*a))
        return calls
    return make, size


def column(bias):
    return bias[:, None, None]


PLAIN = {"nhwc_bias_add": lambda x, b: x + column(b),
         "nhwc_bias_add_add": lambda x, b, y: x + column(b) + y,
         "nhwc_bias_add_bias_add": lambda x, b, y, d: (x + column(b)) + (y + column(d))}

for function, images in (("nhwc_bias_add", 2), ("nhwc_bias_add_add", 3),
                         ("nhwc_bias_add_bias_add", 3)):
    for dtype in (torch.float16, torch.float32):
        make, size = sums(function, dtype)
        peers = {"torch eager": sums(function, dtype, False)[0],
                 "torch compiled": sums(function, dtype, True)[0]}
        if dtype == torch.float16:
            peers["deepspeed"] = sums(function, dtype, "deepspeed")[0]
        row(f"{function} {str(dtype)[6:]}, 16×320×128×128", "spatial_inference", images * size, make,
            peers)
