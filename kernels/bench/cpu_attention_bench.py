#!/usr/bin/env python3
"""The CPU ops with attention, beside torch eager and torch's scaled_dot_product_attention.

    cpu_attention_bench.py BUILD [--threads N] [--types f32,bf16] [--rounds N] [--only TEXT]

BUILD is the build folder of kernels/ (or that of the project) for the torch of this Python, a release
build. A row is measured in turns, so what else the machine does concerns all alike; figures are
medians, peers' columns their time over ours. evoformer_attn: SDPA's mask is the sum of the biases, made in
the measured time. transformer: the whole BERT layer, with SDPA for its attention. cached_attention:
what softmax_context computes with, in a cache with room for more; heads that share keys are queries of
one head for torch eager. Every peer's result is compared with ours first.
"""

import argparse
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SDPA = getattr(F, "scaled_dot_product_attention", None)  # torch 2 and later.


def load(build):
    for op in ("evoformer_attn", "transformer", "transformer_inference"):
        libraries = sorted(pathlib.Path(build).glob(f"**/ds_{op}/libds_{op}.so"))
        if not libraries:
            raise SystemExit(f"{build}: no libds_{op}.so; build the target ds_{op}")
        torch.ops.load_library(str(libraries[0]))


def with_gradients(function, inputs, grad):
    def run():
        out = function()
        return torch.autograd.grad(out, inputs, grad)
    return run


def evoformer(dtype):
    ds = torch.ops.ds
    for b, n, length, h, d in ((1, 128, 64, 4, 32), (1, 64, 256, 4, 32), (1, 16, 384, 8, 64)):
        q, k, v = (torch.randn(b, n, length, h, d).to(dtype).requires_grad_() for _ in range(3))
        b1 = torch.randn(b, n, 1, 1, length).to(dtype).requires_grad_()
        b2 = torch.randn(b, 1, h, length, length).to(dtype).requires_grad_()
        heads = [t.transpose(2, 3) for t in (q, k, v)]

        def eager():
            scores = heads[0] @ heads[1].transpose(-1, -2) * d**-0.5 + b1 + b2
            return (scores.softmax(-1) @ heads[2]).transpose(2, 3)

        def sdpa():
            mask = (b1 + b2).flatten(0, 1)
            return SDPA(*(t.flatten(0, 1) for t in heads), mask).unflatten(0, (b, n)).transpose(2, 3)

        runs = {"ours": lambda: ds.evoformer_attn(q, k, v, b1, b2)[0], "eager": eager}
        if SDPA:
            runs["sdpa"] = sdpa
        shape = f"B{b} N{n} L{length} H{h} D{d}"
        with torch.no_grad():
            yield f"evoformer_attn forward, {shape}", runs
        grad, inputs = torch.randn(b, n, length, h, d).to(dtype), (q, k, v, b1, b2)
        yield (f"evoformer_attn forward + backward, {shape}",
               {name: with_gradients(run, inputs, grad) for name, run in runs.items()})


def layer(dtype):
    ds = torch.ops.ds
    for b, s, e, heads in ((8, 128, 768, 12), (2, 512, 768, 12), (1, 1024, 512, 8)):
        x = torch.randn(b, s, e).to(dtype).requires_grad_()
        mask = torch.zeros(b, 1, 1, s, dtype=dtype)
        mask[:, :, :, -s // 8:] = -10000.0
        shapes = ((3 * e, e), (3 * e,), (e, e), (e,), (e,), (e,), (4 * e, e), (4 * e,), (e, 4 * e), (e,),
                  (e,), (e,))
        w = [(torch.randn(shape) / math.sqrt(shape[-1])).to(dtype).requires_grad_() for shape in shapes]
        (qkv_w, qkv_b, out_w, out_b, attn_g, attn_b, inter_w, inter_b, output_w, output_b, norm_g,
         norm_b) = w
        d = e // heads

        def ours(ratio):
            return ds.transformer_layer(x, mask, w, heads, ratio, ratio, 1e-12, 1, 1, True, True,
                                        False, False)

        def torchs(ratio, attend):
            first = F.layer_norm(x, (e,), norm_g, norm_b, 1e-12)
            q, k, v = (t.view(b, s, heads, d).transpose(1, 2)
                       for t in F.linear(first, qkv_w, qkv_b).chunk(3, -1))
            context = attend(q, k, v, ratio).transpose(1, 2).reshape(b, s, e)
            added = x + F.dropout(F.linear(context, out_w, out_b), ratio)
            hidden = F.linear(F.layer_norm(added, (e,), attn_g, attn_b, 1e-12), inter_w, inter_b)
            return added + F.dropout(F.linear(F.gelu(hidden, approximate="tanh"), output_w, output_b),
                                     ratio)

        def eager(q, k, v, ratio):
            return F.dropout((q @ k.transpose(-1, -2) * d**-0.5 + mask).softmax(-1), ratio) @ v

        def sdpa(q, k, v, ratio):
            return SDPA(q, k, v, mask, ratio)

        grad = torch.randn(b, s, e).to(dtype)
        for ratio, what in ((0.0, "forward"), (0.0, "forward + backward"),
                            (0.1, "forward + backward, dropout 0.1")):
            runs = {"ours": lambda: ours(ratio), "eager": lambda: torchs(ratio, eager)}
            if SDPA:
                runs["sdpa"] = lambda: torchs(ratio, sdpa)
            if "backward" in what:
                runs = {name: with_gradients(run, (x, *w), grad) for name, run in runs.items()}
                yield f"transformer {what}, B{b} S{s} E{e} H{heads}", runs
            else:
                with torch.no_grad():
                    yield f"transformer {what}, B{b} S{s} E{e} H{heads}", runs


def cached(dtype):
    ds, d = torch.ops.ds, 128
    for what, b, heads, kv, queries, keys in (
            ("prefill", 1, 16, 16, 512, 512), ("prefill", 1, 16, 4, 1024, 1024),
            ("decode", 1, 32, 32, 1, 2048), ("decode", 4, 32, 8, 1, 1024), ("decode", 1, 8, 8, 1, 128)):
        room = keys + 128
        q = torch.randn(b, heads, queries, d).to(dtype)
        k, v = (torch.randn(b, kv, room, d).to(dtype)[:, :, :keys] for _ in range(2))
        hidden = torch.full((queries, keys), -math.inf, dtype=dtype).triu(1 + keys - queries)
        share = heads // kv

        def eager():
            scores = q.view(b, kv, share * queries, d) @ k.transpose(-1, -2) * d**-0.5
            if queries > 1:
                scores = scores + hidden.repeat(share, 1)
            out = scores.softmax(-1) @ v
            return out.view(b, heads, queries, d).transpose(1, 2).reshape(b, queries, heads * d)

        def sdpa():
            out = SDPA(q, k, v, is_causal=queries > 1, enable_gqa=share > 1)
            return out.transpose(1, 2).reshape(b, queries, heads * d)

        runs = {"ours": lambda: ds.cached_attention(q, k, v, None, None, d**-0.5, True, 0),
                "eager": eager}
        if SDPA:
            runs["sdpa"] = sdpa
        with torch.no_grad():
            yield f"cached_attention {what}, B{b} H{heads}/{kv} S{queries} of {keys} D{d}", runs


def compare(name, runs):
    """Of what has no dropout: as close as the rounding of a type on the way allows. Of gradients in bf16
    the first alone: torch adds those of a norm's weights up in bf16, and is off by half of them."""
    wants = runs["ours"]()
    for peer, run in runs.items():
        for got, want in zip(*((t if isinstance(t, tuple) else (t,)) for t in (run(), wants))):
            scale = want.float().abs().max().item()
            error = (got.float() - want.float()).abs().max().item()
            if error > scale * (1e-4 if want.dtype == torch.float32 else 0.03):
                raise SystemExit(f"{name}: {peer} differs from ours by {error:.3g}, of {scale:.3g}")
            if want.dtype != torch.float32:
                break


def measure(runs, rounds):
    once = {}
    for name, run in runs.items():
        run()
        begin = time.perf_counter()
        run()
        once[name] = time.perf_counter() - begin
    inner = max(1, int(2e-3 / max(once.values())))
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            for _ in range(inner):
                run()
            times[name].append((time.perf_counter() - begin) / inner)
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder of kernels/")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    options = parser.parse_args()
    load(options.build)
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, {options.threads} threads\n")
    print("| function | type | ms | torch eager | SDPA |\n|---|---|---|---|---|")
    for name_of_type in options.types.split(","):
        for cases in (evoformer, layer, cached):
            for name, runs in cases(TYPES[name_of_type]):
                if options.only not in name:
                    continue
                if "dropout" not in name:
                    compare(name, runs)
                took = measure(runs, options.rounds)
                ratios = [f"{took[peer] / took['ours']:.2f}" if peer in took else ""
                          for peer in ("eager", "sdpa")]
                print(f"| {name} | {name_of_type} | {took['ours'] * 1e3:.2f} | {' | '.join(ratios)} |",
                      flush=True)


if __name__ == "__main__":
    main()
