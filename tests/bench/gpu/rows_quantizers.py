"""Quantization in groups, to integers and to small floating-point formats."""

import torch

from bench import deepspeed, row

ds = torch.ops.ds
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NAMES = {F32: "f32", F16: "f16", BF16: "bf16"}
SIZE = 1 << 28  # Elements: several times the caches.
SETS = 3


def random(dtype, size=SIZE, scale=1.0):
    return torch.empty(size, dtype=dtype, device="cuda").normal_(0, scale)


def torch_quantize(x, groups, bits, symmetric):
    """The same numbers with torch's own operations."""
    v = x.view(groups, -1).float()
    top = 2 ** (bits - 1) - 1
    if symmetric:
        scale = 2.0 ** (bits - 1) / v.abs().amax(1, keepdim=True)
        q = (v * scale).round().clamp(-top - 1, top).to(torch.int8)
        params = 1 / scale
    else:
        high, low = v.amax(1, keepdim=True), v.amin(1, keepdim=True)
        scale = 2.0 ** bits / (high - low)
        offset = (high + low) / 2
        q = ((v - offset) * scale).round().clamp(-top - 1, top).to(torch.int8)
        params = torch.cat((1 / scale, offset), 1)
    if bits == 4:
        q = (q[:, ::2] << 4) | (q[:, 1::2] & 15)
    return q, params


def torch_dequantize(q, params, groups, dtype):
    return (q.view(groups, -1).float() * params).to(dtype)


def torch_fake(x, groups, bits):
    v = x.view(groups, -1).float()
    scale = 2.0 ** (bits - 1) / v.abs().amax(1, keepdim=True)
    top = 2 ** (bits - 1) - 1
    return ((v * scale).round().clamp(-top - 1, top) / scale).to(x.dtype)


def peers(function, make_arguments):
    """torch's operations one by one, and compiled into its own kernels."""
    def calls(f):
        return lambda: [lambda a=a: f(*a) for a in make_arguments()]
    return {"eager": calls(function), "compiled": lambda: calls(torch.compile(function))()}


def theirs(make_arguments, call):
    """DeepSpeed's kernel: call(module, kind of quantization, arguments)."""
    def make():
        module = deepspeed("quantizer")
        return [lambda a=a: call(module, *a) for a in make_arguments()]
    return {"deepspeed": make}


def kind(module, symmetric):
    return module.Symmetric if symmetric else module.Asymmetric


def quantize(dtype, bits, symmetric, group, with_peers=False):
    groups = SIZE // group
    size = groups * group
    width = torch.finfo(dtype).bits // 8

    def make():
        xs = [random(dtype, size) for _ in range(SETS)]
        return [lambda x=x: ds.quantize(x, groups, bits, symmetric) for x in xs]

    row(f"quantize int{bits} {'sym' if symmetric else 'asym'} {NAMES[dtype]}, groups of {group}",
        "quantizer", size * width + size * bits // 8 + groups * (4 if symmetric else 8), make,
        {**peers(torch_quantize, lambda: [(random(dtype, size), groups, bits, symmetric)
                                          for _ in range(SETS)]),
         **theirs(lambda: [(random(dtype, size),) for _ in range(SETS)],
                  lambda m, x: m.quantize(x, groups, bits, kind(m, symmetric)))}
        if with_peers else None)


for bits_ in (8, 4):
    for symmetric_ in (True, False):
        quantize(F16, bits_, symmetric_, 2048, with_peers=True)
quantize(BF16, 8, True, 2048)
quantize(F32, 8, True, 2048)
quantize(F32, 4, True, 2048)
for group_ in (64, 256, 512, 1000, 1024, 2041, 16384, 65536, 1 << 20):
    quantize(F16, 8, True, group_)


def swizzled(bits, feedback):
    groups = SIZE // 2048

    def make():
        xs = [random(F16) for _ in range(SETS)]
        if not feedback:
            return [lambda x=x: ds.swizzle_quant(x, groups, bits, True, 1, 2, 8) for x in xs]
        errors = [random(F16, scale=0.01) for _ in range(SETS)]
        return [lambda x=x, e=e: ds.loco_swizzle_quant(x, e, 0.8, groups, bits, True, 1, 2, 8)
                for x, e in zip(xs, errors)]

    row(f"{'loco_' if feedback else ''}swizzle_quant int{bits} sym f16, 2 nodes of 8", "quantizer",
        SIZE * (6 if feedback else 2) + SIZE * bits // 8 + groups * 4, make,
        theirs(lambda: [(random(F16), random(F16, scale=0.01)) for _ in range(SETS)],
               lambda m, x, e: m.loco_swizzle_quant(x, e, 0.8, groups, bits, m.Symmetric, 1, 2, 8)
               if feedback else m.swizzle_quant(x, groups, bits, m.Symmetric, 1, 2, 8)))


for bits_ in (4, 8):
    swizzled(bits_, False)
    swizzled(bits_, True)


def codes(bits, symmetric=True):
    return [ds.quantize(random(F16), SIZE // 2048, bits, symmetric) for _ in range(SETS)]


def reduction(bits, symmetric, feedback):
    groups, size = SIZE // 2048, SIZE // 8
    out_groups = size // 2048
    per_group = 4 if symmetric else 8

    def make():
        packed = codes(bits, symmetric)
        if not feedback:
            return [lambda q=q, p=p: ds.quantized_reduction(q, p, groups, out_groups, bits,
                                                            symmetric, 8) for q, p in packed]
        errors = [random(F16, size, 0.01) for _ in range(SETS)]
        return [lambda q=q, p=p, e=e: ds.loco_quantized_reduction(q, p, e, 0.8, groups, out_groups,
                                                                  bits, symmetric, 8)
                for (q, p), e in zip(packed, errors)]

    row(f"{'loco_' if feedback else ''}quantized_reduction int{bits} "
        f"{'sym' if symmetric else 'asym'}, 8 tensors", "quantizer",
        (SIZE + size) * bits // 8 + (groups + out_groups) * per_group +
        (size * 4 if feedback else 0), make,
        theirs(lambda: [(q, p, random(F16, size, 0.01)) for q, p in codes(bits, symmetric)],
               lambda m, q, p, e: m.loco_quantized_reduction(q, p, e, 0.8, groups, out_groups, bits,
                                                             kind(m, symmetric), 8)
               if feedback else m.quantized_reduction(q, p, groups, out_groups, bits,
                                                      kind(m, symmetric), 8)))


for bits_ in (4, 8):
    reduction(bits_, True, False)
    reduction(bits_, True, True)
reduction(8, False, False)


def dequantize(bits, symmetric, dtype):
    groups = SIZE // 2048
    width = torch.finfo(dtype).bits // 8

    def make():
        return [lambda q=q, p=p: ds.dequantize(q, p, groups, bits, symmetric, dtype)
                for q, p in codes(bits, symmetric)]

    with_peers = bits == 8 and symmetric
    row(f"dequantize int{bits} {'sym' if symmetric else 'asym'} {NAMES[dtype]}", "quantizer",
        SIZE * bits // 8 + SIZE * width + groups * (4 if symmetric else 8), make,
        {**(peers(torch_dequantize, lambda: [(q, p, groups, dtype) for q, p in codes(bits)])
            if with_peers else {}),
         **theirs(lambda: [(q, p) for q, p in codes(bits, symmetric)],
                  lambda m, q, p: (m.dequantize if dtype == F16 else m.dequantize_fp32)(
                      q, p, groups, bits, kind(m, symmetric)))})


for bits_ in (8, 4):
    dequantize(bits_, True, F16)
    dequantize(bits_, False, F16)
    dequantize(bits_, True, F32)


def int_to_half(bits):
    groups = SIZE // 2048

    def make():
        calls = []
        for q, _ in codes(bits):
            scale = (torch.rand(groups, device="cuda") + 1).half()
            low = torch.randn(groups, device="cuda").half()
            calls.append(lambda q=q, s=scale, m=low: ds.dequantize_int_to_half(q, s, m, groups,
                                                                               2048, bits))
        return calls

    row(f"dequantize_int{bits}_to_half", "quantizer",
        SIZE * bits // 8 + SIZE * 2 + groups * 4, make)


int_to_half(8)
int_to_half(4)


def fake(dtype, symmetric, stochastic, group):
    def make():
        xs = [random(dtype) for _ in range(SETS)]
        return [lambda x=x: ds.fake_quantize_(x, SIZE // group, 8, symmetric, stochastic)
                for x in xs]

    plain = symmetric and not stochastic and dtype == F16
    row(f"fake_quantize {'sym' if symmetric else 'asym'} {NAMES[dtype]}"
        f"{' stochastic' if stochastic else ''}, groups of {group}", "quantizer",
        2 * SIZE * torch.finfo(dtype).bits // 8, make,
        {**(peers(torch_fake, lambda: [(random(dtype), SIZE // group, 8) for _ in range(SETS)])
            if plain and group == 2048 else {}),
         **(theirs(lambda: [(random(dtype),) for _ in range(SETS)],
                   lambda m, x: getattr(m, f"ds_{'sr_' if stochastic else ''}quantize"
                                        f"{'' if symmetric else '_asym'}"
                                        f"_fp{torch.finfo(dtype).bits}")(x, SIZE // group, 8))
            if dtype != BF16 and group == 2048 else {})})


for symmetric_ in (True, False):
    for stochastic_ in (False, True):
        fake(F16, symmetric_, stochastic_, 2048)
fake(BF16, True, True, 2048)
fake(F32, True, False, 2048)
fake(F32, True, True, 2048)
fake(F16, True, False, SIZE)  # One group for all of a tensor.


def fp(dtype, bits, mantissa, group):
    groups = SIZE // group
    moved = SIZE * torch.finfo(dtype).bits // 8 + SIZE * bits // 8 + groups * 4
    name = f"fp{bits} e{bits - 1 - mantissa}m{mantissa} {NAMES[dtype]}, groups of {group}"

    def quantizing(stochastic):
        def make():
            return [lambda x=x: ds.fp_quantize(x, group, bits, mantissa, stochastic)
                    for x in (random(dtype) for _ in range(SETS))]
        return make

    def rows():
        return [ds.fp_quantize(random(dtype), group, bits, mantissa) for _ in range(SETS)]

    def dequantizing():
        out = torch.empty(SIZE, dtype=dtype, device="cuda")
        return [lambda r=r: ds.fp_dequantize_(r, out, group, bits, mantissa) for r in rows()]

    def selecting():
        out = torch.empty(SIZE, dtype=dtype, device="cuda")
        indexes = torch.randperm(groups // 64, device="cuda", dtype=torch.int32)
        return [lambda r=r: ds.fp_selective_dequantize_(r, indexes, out, group, bits, mantissa)
                for r in rows()]

    row(f"fp_quantize {name}", "fp_quantizer", moved, quantizing(False))
    row(f"fp_quantize stochastic {name}", "fp_quantizer", moved, quantizing(True))
    row(f"fp_dequantize {name}", "fp_quantizer", moved, dequantizing)
    if dtype == BF16 and group == 512:
        row(f"fp_selective_dequantize {name}", "fp_quantizer", moved, selecting)


for bits_, mantissa_ in ((12, 7), (8, 3), (8, 2), (6, 2), (4, 1)):
    fp(BF16, bits_, mantissa_, 512)
fp(F16, 8, 3, 512)
fp(F32, 8, 3, 512)
fp(BF16, 8, 3, 256)
fp(BF16, 8, 3, 2048)
