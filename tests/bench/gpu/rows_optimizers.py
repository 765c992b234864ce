"""Optimizers over lists of tensors."""

import torch

from bench import deepspeed, l2_bytes, row

ds = torch.ops.ds
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def gpt2_xl_shapes():
    """As GPT-2 XL has them, 16 of its 48 layers: 194 tensors, 572 M parameters."""
    h = 1600
    layer = [(h,), (h,), (h, 3 * h), (3 * h,), (h, h), (h,), (h,), (h,), (h, 4 * h), (4 * h,),
             (4 * h, h), (h,)]
    return layer * 16 + [(50257, h), (h,)]


def small_shapes():
    generator = torch.Generator().manual_seed(1)
    return [(int(n),) for n in torch.randint(100, 20000, (10000,), generator=generator)]


def count(shapes):
    return sum(torch.Size(s).numel() for s in shapes)


def random_list(shapes, dtype, scale=1.0, positive=False):
    tensors = []
    for shape in shapes:
        t = torch.empty(shape, dtype=dtype, device="cuda").normal_(0, scale)
        tensors.append(t.abs_() if positive else t)
    return tensors


def inputs(shapes, param, grad, state, copy=None, second=True):
    p, g, m = random_list(shapes, param), random_list(shapes, grad), random_list(shapes, state, 0.1)
    v = random_list(shapes, state, 0.1, True) if second else None
    copies = [torch.empty_like(t, dtype=copy) for t in p] if copy else []
    return p, g, m, v, copies


def adam(shapes, param=F32, grad=F32, state=F32, copy=None, device_numbers=False):
    def make():
        p, g, m, v, copies = inputs(shapes, param, grad, state, copy)
        extra = {}
        if device_numbers:
            one = torch.ones((), device="cuda")
            extra = dict(step_on_device=torch.zeros((), dtype=torch.int64, device="cuda"),
                         lr_on_device=one * 1e-3, grad_scale_on_device=one, grad_norm=one * 2,
                         max_norm=1.0, found_inf=one * 0)
        return [lambda: ds.fused_adam_step(p, g, m, v, copies, step=5, lr=1e-3, weight_decay=0.01,
                                           **extra)]
    return make


def torch_adam(shapes, dtype=F32, compiled=False, **options):
    def make():
        params = [torch.nn.Parameter(t) for t in random_list(shapes, dtype)]
        for p, g in zip(params, random_list(shapes, dtype)):
            p.grad = g
        optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, **options)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        return [step]
    return make


def lion(shapes, param=F32, grad=F32, state=F32):
    def make():
        p, g, m, _, _ = inputs(shapes, param, grad, state, second=False)
        return [lambda: ds.fused_lion_step(p, g, m, [], lr=1e-4, weight_decay=0.01)]
    return make


def foreach_lion(shapes):
    def make():
        p, g, m, _, _ = inputs(shapes, F32, F32, F32, second=False)

        def step():
            c = torch._foreach_lerp(m, g, 0.1)
            torch._foreach_sign_(c)
            torch._foreach_mul_(p, 1 - 1e-6)
            torch._foreach_add_(p, c, alpha=-1e-4)
            torch._foreach_lerp_(m, g, 0.01)
        return [step]
    return make


def lamb(shapes, param=F32, grad=F32, state=F32):
    def make():
        p, g, m, v, _ = inputs(shapes, param, grad, state)
        return [lambda: ds.fused_lamb_step(p, g, m, v, [], step=5, lr=1e-3, weight_decay=0.01)]
    return make


def foreach_lamb(shapes):
    def make():
        p, g, m, v, _ = inputs(shapes, F32, F32, F32)

        def step():
            torch._foreach_lerp_(m, g, 0.1)
            torch._foreach_mul_(v, 0.999)
            torch._foreach_addcmul_(v, g, g, 0.001)
            d = torch._foreach_sqrt(v)
            torch._foreach_add_(d, 1e-8)
            u = torch._foreach_div(m, d)
            torch._foreach_add_(u, p, alpha=0.01)
            r = torch._foreach_div(torch._foreach_norm(p), torch._foreach_norm(u))
            torch._foreach_mul_(u, r)
            torch._foreach_add_(p, u, alpha=-1e-3)
        return [step]
    return make


def of_deepspeed(op, shapes, param=F32):
    """Its kernel as its optimizer calls it. Its states are of the parameters' type."""
    def make():
        module = deepspeed(op)
        p, g, m, v, _ = inputs(shapes, param, param, param)
        noop = torch.zeros(1, dtype=torch.int32, device="cuda")
        if op == "fused_adam":
            return [lambda: module.multi_tensor_adam(2048 * 32, noop, [g, p, m, v], 1e-3, 0.9,
                                                     0.999, 1e-8, 5, 1, 1, 0.01)]
        if op == "fused_lion":
            return [lambda: module.multi_tensor_lion(2048 * 32, noop, [g, p, m], 1e-4, 0.9, 0.99, 5,
                                                     0.01)]
        none = torch.empty(0, device="cuda")

        def step():
            for i in range(len(p)):
                module.lamb(p[i], none, m[i], v[i], g[i], 1e-3, 0.9, 0.999, 10.0, 0.01, 1e-8, 1.0,
                            5, 1, 1, 0.01)
        return [step]
    return make


def lamb_bytes(shapes, once, again):
    """`once` bytes an element, and `again` of them a second time for what the cache cannot hold."""
    return sum(n * once + max(0, n * again - l2_bytes()) for n in map(lambda s: count([s]), shapes))


XL, SMALL = gpt2_xl_shapes(), small_shapes()
HUGE = [(2**31 + 12345,)]
N, M, B = count(XL), count(SMALL), count(HUGE)
AW = {"torch AdamW fused": torch_adam(XL, fused=True),
      "torch AdamW foreach": torch_adam(XL, foreach=True),
      "torch AdamW compiled": torch_adam(XL, compiled=True, foreach=True, capturable=True),
      "deepspeed": of_deepspeed("fused_adam", XL)}

row("fused_adam f32, GPT-2 XL", "fused_adam", 28 * N, adam(XL), AW)
row("fused_adam f32, numbers on the device, graph", "fused_adam", 28 * N,
    adam(XL, device_numbers=True), graph=True)
row("fused_adam f32, bf16 gradient and copy", "fused_adam", 28 * N, adam(XL, F32, BF16, F32, BF16))
row("fused_adam bf16, f32 states", "fused_adam", 22 * N, adam(XL, BF16, BF16, F32))
row("fused_adam bf16, bf16 states", "fused_adam", 14 * N, adam(XL, BF16, BF16, BF16),
    {"torch AdamW fused": torch_adam(XL, BF16, fused=True),
     "deepspeed": of_deepspeed("fused_adam", XL, BF16)})
row("fused_adam f16, f32 gradient and states", "fused_adam", 24 * N, adam(XL, F16, F32, F32))
row("fused_adam f32, 10,000 small tensors, graph", "fused_adam", 28 * M, adam(SMALL), graph=True)
row("fused_adam f32, 10,000 small tensors, eager", "fused_adam", 28 * M, adam(SMALL),
    {"torch AdamW fused": torch_adam(SMALL, fused=True),
     "deepspeed": of_deepspeed("fused_adam", SMALL)})
row("fused_adam bf16, one of 2^31+ elements", "fused_adam", 14 * B, adam(HUGE, BF16, BF16, BF16),
    {"torch AdamW fused": torch_adam(HUGE, BF16, fused=True)})
row("fused_lion f32, GPT-2 XL", "fused_lion", 20 * N, lion(XL),
    {"torch foreach": foreach_lion(XL), "deepspeed": of_deepspeed("fused_lion", XL)})
row("fused_lion bf16, f32 state", "fused_lion", 14 * N, lion(XL, BF16, BF16, F32))
row("fused_lion bf16, bf16 state", "fused_lion", 10 * N, lion(XL, BF16, BF16, BF16),
    {"deepspeed": of_deepspeed("fused_lion", XL, BF16)})
row("fused_lion f32, 10,000 small tensors, graph", "fused_lion", 20 * M, lion(SMALL), graph=True)
LAMB_NOTE = "12 bytes an element again for what exceeds the L2 cache"
row("fused_lamb f32, GPT-2 XL", "fused_lamb", lamb_bytes(XL, 28, 12), lamb(XL),
    {"torch foreach": foreach_lamb(XL), "deepspeed": of_deepspeed("fused_lamb", XL)},
    note=LAMB_NOTE)
row("fused_lamb bf16, f32 states", "fused_lamb", lamb_bytes(XL, 22, 10), lamb(XL, BF16, BF16, F32),
    note="10 bytes an element again for what exceeds the L2 cache")
row("fused_lamb bf16, bf16 states", "fused_lamb", lamb_bytes(XL, 14, 6), lamb(XL, BF16, BF16, BF16),
    note="6 bytes an element again for what exceeds the L2 cache")
row("fused_lamb f32, 10,000 small tensors, graph", "fused_lamb", 28 * M, lamb(SMALL), graph=True)
FITS = [(1024, 1024)] * 128
row("fused_lamb f32, 128 of 1 M elements", "fused_lamb", 28 * count(FITS), lamb(FITS))
