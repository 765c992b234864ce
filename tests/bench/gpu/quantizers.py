"""Benchmarks of quantizer and fp_quantizer: what is run, and the bytes that it must move."""

import torch

SIZE = 1 << 28  # Elements of the larger side: several times the caches.
SETS = 3        # Inputs to rotate among.

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
NAMES = {HALF: "f16", BF16: "bf16", FLOAT: "f32"}


def _inputs(dtype, size=SIZE):
    return [torch.randn(size, device="cuda", dtype=dtype) for _ in range(SETS)]


def _quantize(x, groups, bits, symmetric):
    """The same with torch's own operations."""
    v = x.view(groups, -1).float()
    top = 2 ** (bits - 1) - 1
    if symmetric:
        scale = 2.0 ** (bits - 1) / v.abs().amax(1, keepdim=True)
        q = (v * scale).round().clamp(-top - 1, top).to(torch.int8)
        params = 1 / scale
    else:
        high, low = v.amax(1, keepdim=True), v.amin(1, keepdim=True)
        scale = 2.0**bits / (high - low)
        offset = (high + low) / 2
        q = ((v - offset) * scale).round().clamp(-top - 1, top).to(torch.int8)
        params = torch.cat((1 / scale, offset), 1)
    if bits == 4:
        q = (q[:, ::2] << 4) | (q[:, 1::2] & 15)
    return q, params


def _dequantize(q, params, groups, dtype):
    return (q.view(groups, -1).float() * params).to(dtype)


def quantizer_rows(ds):
    """(name, bytes, ours(i), torch's(i) or None) for input set i."""
    for dtype, bits, symmetric, group in (
            (HALF, 8, True, 2048), (HALF, 4, True, 2048), (HALF, 8, False, 2048),
            (HALF, 4, False, 2048), (BF16, 8, True, 2048), (FLOAT, 8, True, 2048),
            (FLOAT, 4, True, 2048),
            (HALF, 8, True, 64), (HALF, 8, True, 256), (HALF, 8, True, 512), (HALF, 8, True, 16384),
            (HALF, 8, True, 65536), (HALF, 8, True, 1 << 20), (HALF, 8, True, 1000),
            (HALF, 8, True, 2041)):
        xs = _inputs(dtype, SIZE // group * group)
        n = xs[0].numel()
        groups = n // group
        moved = n * xs[0].element_size() + n * bits // 8 + groups * (4 if symmetric else 8)
        kind = "sym" if symmetric else "asym"
        reference = None
        if group == 2048:
            reference = lambda i, xs=xs, g=groups, b=bits, s=symmetric: _quantize(xs[i], g, b, s)
        yield (f"quantize int{bits} {kind} {NAMES[dtype]}, groups of {group}", moved,
               lambda i, xs=xs, g=groups, b=bits, s=symmetric: ds.quantize(xs[i], g, b, s),
               reference)

    xs = _inputs(HALF)
    groups = SIZE // 2048
    yield ("swizzle_quant int4 sym f16, 2x8", SIZE * 2 + SIZE // 2 + groups * 4,
           lambda i: ds.swizzle_quant(xs[i], groups, 4, True, 1, 2, 8), None)
    errors = [torch.randn_like(x) * 0.01 for x in xs]
    yield ("loco_swizzle_quant int4 sym f16, 2x8", SIZE * 6 + SIZE // 2 + groups * 4,
           lambda i: ds.loco_swizzle_quant(xs[i], errors[i], 0.8, groups, 4, True, 1, 2, 8), None)
    for bits in (4, 8):
        packed = [ds.quantize(x, groups, bits, True) for x in xs]
        size = SIZE // 8
        moved = SIZE * bits // 8 + groups * 4 + size * bits // 8 + size // 2048 * 4
        yield (f"quantized_reduction int{bits} sym, 8 tensors", moved,
               lambda i, p=packed, b=bits: ds.quantized_reduction(
                   p[i][0], p[i][1], groups, size // 2048, b, True, 8), None)
        small = [torch.randn(size, device="cuda", dtype=HALF) * 0.01 for _ in range(SETS)]
        yield (f"loco_quantized_reduction int{bits} sym, 8 tensors", moved + size * 4,
               lambda i, p=packed, b=bits, s=small: ds.loco_quantized_reduction(
                   p[i][0], p[i][1], s[i], 0.8, groups, size // 2048, b, True, 8), None)
        for dtype in (HALF, FLOAT):
            width = torch.finfo(dtype).bits // 8
            yield (f"dequantize int{bits} sym {NAMES[dtype]}",
                   SIZE * bits // 8 + SIZE * width + groups * 4,
                   lambda i, p=packed, b=bits, d=dtype: ds.dequantize(
                       p[i][0], p[i][1], groups, b, True, d),
                   (lambda i, p=packed, d=dtype: _dequantize(p[i][0], p[i][1], groups, d))
                   if bits == 8 else None)
        scales = [(torch.rand(groups, device="cuda") + 1).half() for _ in range(SETS)]
        yield (f"dequantize_int{bits}_to_half", SIZE * bits // 8 + SIZE * 2 + groups * 4,
               lambda i, p=packed, b=bits, s=scales: ds.dequantize_int_to_half(
                   p[i][0], s[i], s[i], groups, 2048, b), None)
    del xs, errors, packed, small
    for dtype, symmetric, stochastic, group in (
            (HALF, True, False, 2048), (HALF, False, False, 2048), (HALF, True, True, 2048),
            (HALF, False, True, 2048), (BF16, True, True, 2048), (FLOAT, True, False, 2048),
            (FLOAT, True, True, 2048), (HALF, True, False, 256), (HALF, True, True, 256)):
        xs = _inputs(dtype)
        yield (f"fake_quantize {'sym' if symmetric else 'asym'} {NAMES[dtype]}"
               f"{' stochastic' if stochastic else ''}, groups of {group}",
               2 * SIZE * xs[0].element_size(),
               lambda i, xs=xs, s=symmetric, r=stochastic, g=group: ds.fake_quantize_(
                   xs[i], SIZE // g, 8, s, r), None)


def fp_quantizer_rows(ds):
    for dtype, group in ((BF16, 512), (FLOAT, 512), (BF16, 256), (BF16, 2048)):
        xs = _inputs(dtype)
        out = torch.empty_like(xs[0])
        groups = SIZE // group
        indexes = torch.randperm(groups // 64, device="cuda", dtype=torch.int32)
        for bits, mantissa in ((8, 3), (8, 2), (12, 7), (6, 2), (4, 1)):
            if group != 512 and bits != 8:
                continue
            name = f"fp{bits} e{bits - 1 - mantissa}m{mantissa} {NAMES[dtype]}, groups of {group}"
            moved = SIZE * xs[0].element_size() + SIZE * bits // 8 + groups * 4
            yield (f"fp_quantize {name}", moved,
                   lambda i, xs=xs, g=group, b=bits, m=mantissa: ds.fp_quantize(xs[i], g, b, m),
                   None)
            if dtype == FLOAT and bits != 8:
                continue
            yield (f"fp_quantize stochastic {name}", moved,
                   lambda i, xs=xs, g=group, b=bits, m=mantissa: ds.fp_quantize(
                       xs[i], g, b, m, True, i), None)
            rows = [ds.fp_quantize(x, group, bits, mantissa) for x in xs]
            yield (f"fp_dequantize {name}", moved,
                   lambda i, r=rows, o=out, g=group, b=bits, m=mantissa: ds.fp_dequantize_(
                       r[i], o, g, b, m), None)
            if group == 512 and dtype == BF16:
                yield (f"fp_selective_dequantize {name}", moved,
                       lambda i, r=rows, o=out, x=indexes, g=group, b=bits, m=mantissa:
                       ds.fp_selective_dequantize_(r[i], x, o, g, b, m), None)
