#!/usr/bin/env python3
"""What the CPU kernels of the quantizers, random_ltd and spatial_inference take, beside a copy of as
many bytes and, where torch has the function, torch.

    cpu_tensor_ops_bench.py BUILD [--threads N] [--elements N] [--only TEXT]

BUILD is the build folder of kernels/ (or that of the project), a release build. The copy is measured
in turns with each function, so what else the machine does concerns both. "× copy" is the time over
that of a copy which moves as many bytes, half of them read and half written.
"""

import argparse
import pathlib
import statistics
import time

import torch

OPS = ("quantizer", "fp_quantizer", "random_ltd", "spatial_inference")


def load(build):
    found = []
    for op in OPS:
        for library in sorted(pathlib.Path(build).glob(f"**/ds_{op}/libds_{op}.so")):
            torch.ops.load_library(str(library))
            found.append(op)
            break
    return found


def once(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def cases(found, n):
    """(name, bytes read and written, function, torch's or None)"""
    ds, group = torch.ops.ds, 2048
    short = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    if "quantizer" in found:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(n // group, group).to(dtype)
            size, name = x.element_size(), short[dtype]
            for bits in (8, 4):
                yield (f"quantize int{bits} {name}", n * size + n * bits // 8,
                       lambda: ds.quantize(x, n // group, bits, True), None)
                codes, params = ds.quantize(x, n // group, bits, True)
                yield (f"dequantize int{bits} {name}", n * size + n * bits // 8,
                       lambda: ds.dequantize(codes, params, n // group, bits, True, dtype), None)
            yield (f"quantize int8 asym {name}", n * size + n,
                   lambda: ds.quantize(x, n // group, 8, False), None)
            yield (f"quantize int8 {name}, one group", n * size + n,
                   lambda: ds.quantize(x, 1, 8, True), None)
            y = x.clone()
            yield (f"fake_quantize {name}", 2 * n * size,
                   lambda: ds.fake_quantize_(y, n // group, 8, True), None)
            yield (f"fake_quantize stochastic {name}", 2 * n * size,
                   lambda: ds.fake_quantize_(y, n // group, 8, True, True, 1, 2), None)
            e = torch.zeros(n, dtype=dtype)
            yield (f"loco_swizzle_quant int4 {name}", 3 * n * size + n // 2,
                   lambda: ds.loco_swizzle_quant(x, e, 0.5, n // group, 4, True, 1, 2, 4), None)
        x = torch.randn(n // group, group).half()
        for bits in (8, 4):
            codes, params = ds.swizzle_quant(x, n // group, bits, True, 1, 1, 8)
            yield (f"quantized_reduction int{bits}, 8 tensors", n * bits // 8 * 9 // 8,
                   lambda: ds.quantized_reduction(codes, params, n // group, n // group // 8, bits,
                                                  True, 8), None)
        codes = torch.randint(0, 256, (n // group, group), dtype=torch.uint8)
        ones = torch.ones(n // group, dtype=torch.float16)
        yield ("dequantize_int_to_half 8", 3 * n,
               lambda: ds.dequantize_int_to_half(codes, ones, ones, n // group, group, 8), None)
    if "fp_quantizer" in found:
        x = torch.randn(n).bfloat16()
        for bits, mantissa in ((12, 7), (8, 3), (8, 2), (6, 2), (4, 1)):
            moved = 2 * n + n * bits // 8
            yield (f"fp_quantize {bits}/{mantissa} bf16", moved,
                   lambda: ds.fp_quantize(x, 512, bits, mantissa), None)
            yield (f"fp_quantize {bits}/{mantissa} bf16 stochastic", moved,
                   lambda: ds.fp_quantize(x, 512, bits, mantissa, True, 1, 2), None)
            rows, out = ds.fp_quantize(x, 512, bits, mantissa), torch.empty_like(x)
            yield (f"fp_dequantize_ {bits}/{mantissa} bf16", moved,
                   lambda: ds.fp_dequantize_(rows, out, 512, bits, mantissa), None)
    if "random_ltd" in found:
        channels, tokens = 1024, 2048
        batch = n // channels // tokens
        x = torch.randn(batch, tokens, channels).half()
        idx = torch.stack([torch.randperm(tokens)[:tokens // 2] for _ in range(batch)])
        idx = idx.sort(1).values.int()
        wide = idx.long()[:, :, None].expand(-1, -1, channels)
        kept = ds.token_gather(x, idx, True)
        moved = 2 * kept.numel() * kept.element_size()
        yield ("token_gather f16", moved, lambda: ds.token_gather(x, idx, True),
               lambda: x.gather(1, wide))
        yield ("token_scatter_ f16", moved, lambda: ds.token_scatter_(x, kept, idx, True),
               lambda: x.scatter_(1, wide, kept))
        mask = torch.randn(2, 1, tokens, tokens).half()
        rows = torch.stack([idx[:1].expand(2, -1)] * 12).contiguous()
        moved = 12 * 2 * (tokens // 2) ** 2 * 2 * 2
        long = idx[0].long()
        yield ("mask_gather_bert f16, 12 layers", moved, lambda: ds.mask_gather_bert(mask, rows),
               lambda: [mask[b, 0][long][:, long] for b in range(2) for _ in range(12)])
        ids = torch.stack([torch.randperm(tokens)[:tokens // 2] for _ in range(1000)]).int()
        yield ("token_sort_ 1000 rows of 1024 of 2048", 2 * ids.numel() * 4,
               lambda: ds.token_sort_(ids, tokens), lambda: ids.sort(dim=1))
    if "spatial_inference" in found:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x, y = (torch.randn(n // 320 // 4096, 320, 64, 64).to(dtype)
                    .to(memory_format=torch.channels_last) for _ in range(2))
            b, size = torch.randn(320).to(dtype), x.numel() * x.element_size()
            yield (f"nhwc_bias_add {short[dtype]}", 2 * size, lambda: ds.nhwc_bias_add(x, b),
                   lambda: x + b[:, None, None])
            yield (f"nhwc_bias_add_bias_add {short[dtype]}", 3 * size,
                   lambda: ds.nhwc_bias_add_bias_add(x, b, y, b),
                   lambda: (x + b[:, None, None]) + (y + b[:, None, None]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = load(options.build)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.elements} elements\n")
    print("| function | ms | GB/s | × copy | torch |\n|---|---|---|---|---|")
    for name, moved, function, torchs in cases(found, options.elements):
        if options.only not in name:
            continue
        source = torch.randint(0, 100, (moved // 2,), dtype=torch.uint8)
        target = torch.empty_like(source)
        runs = {"ours": function, "copy": lambda: target.copy_(source)}
        if torchs:
            runs["torch"] = torchs
        for run in runs.values():
            run()
        times = {key: [] for key in runs}
        for _ in range(options.rounds):
            for key, run in runs.items():
                times[key].append(once(run))
        took = {key: statistics.median(values) for key, values in times.items()}
        beside = f"{took['torch'] / took['ours']:.2f} ×" if torchs else ""
        print(f"| {name} | {took['ours'] * 1e3:.2f} | {moved / took['ours'] / 1e9:.1f} "
              f"| {took['ours'] / took['copy']:.2f} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
