"""transformer_inference through torch, and under DeepSpeed's names: layouts, caches, errors, torch.compile."""

import glob
import importlib.util
import math
import os
import pathlib
import sys
import unittest
import unittest.mock

import torch
import torch.nn.functional as F

for library in glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_transformer_inference/libds_*.so"):
    torch.ops.load_library(library)
ds = torch.ops.ds
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load(name):
    path = (pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed" /
            f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{name}_{load.count}", path)
    load.count += 1
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load.count = 0
deepspeed = load("transformer_inference")


def close(got, want, scale=1.0):
    """Element by element, to the rounding of the type and a little for sums."""
    step = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[got.dtype]
    want = want.double()
    error = (got.double() - want).abs()
    allowed = step * (want.abs() + scale)
    assert bool((error <= allowed).all()), (error / allowed).max()


def plain_attention(q, k, v, scale, causal=False, mask=None, window=0):
    """float64, the scores materialised. [B, H, S, D] and [B, KH, T, D]."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores + mask.double()
    position = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    key = torch.arange(k.shape[2])[None, :]
    gone = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        gone |= key > position
    if window:
        gone |= key <= position - window
    scores = scores.masked_fill(gone, -math.inf)
    return torch.nan_to_num(scores.softmax(-1), nan=0.0) @ v


class Functions(unittest.TestCase):
    def test_norms_are_torchs_in_float64(self):
        for dtype in DTYPES:
            for shape in ((3, 7), (2, 5, 129), (0, 16), (2, 0, 8)):
                x, r = (torch.randn(shape).to(dtype) for _ in range(2))
                b, g, beta = (torch.randn(shape[-1]).to(dtype) for _ in range(3))
                s = x.double() + r.double()

                def want(t):
                    return F.layer_norm(t, shape[-1:], g.double(), beta.double(), 1e-5)
                close(ds.layer_norm(x, g, beta, 1e-5), want(x.double()), 3)
                out, added = ds.layer_norm_residual(x, r, b, g, beta, 1e-5)
                close(out, want(s + b.double()), 3)
                close(added, s + b.double())
                out, added = ds.rms_norm_residual(x, r, g, 1e-6)
                close(out, s / (s.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * g.double(), 3)
                d = x.double()
                close(ds.rms_norm(x, g, 1e-6),
                      d / (d.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * g.double(), 3)

    def test_activations_are_torchs_in_float64(self):
        for dtype in DTYPES:
            x, b = (4 * torch.randn(2, 5, 66)).to(dtype), torch.randn(66).to(dtype)
            s = x.double() + b.double()
            for name, f in (("identity", lambda t: t), ("relu", F.relu), ("gelu", F.gelu),
                            ("silu", F.silu)):
                close(ds.bias_activation(x, b, name), f(s), 4)
                close(ds.gated_activation(x, b, name), s[..., :33] * f(s[..., 33:]), 16)
                close(ds.bias_activation(x, None, name), f(x.double()), 4)

    def test_what_is_not_contiguous_is_read_as_it_is_and_never_written_to_a_copy(self):
        x = torch.randn(6, 10).t()
        g, b = torch.randn(6), torch.randn(12)[::2]
        self.assertTrue(torch.equal(ds.layer_norm(x, g, b, 1e-5),
                                    ds.layer_norm(x.contiguous(), g, b.contiguous(), 1e-5)))
        with self.assertRaisesRegex(RuntimeError, "residual is written and must be contiguous"):
            ds.residual_add_(x, x, None, None, None, 1.0, False)
        heads = torch.randn(2, 5, 3, 16).transpose(1, 2)
        want = heads.contiguous()
        ds.rotary_(want, None, 4, 16, True)
        ds.rotary_(heads, None, 4, 16, True)
        self.assertTrue(torch.equal(heads, want))

    def test_attention_over_a_cache_with_masks_and_windows(self):
        for dtype in DTYPES:
            for heads, kv, queries, keys, size in ((4, 4, 9, 9, 16), (4, 2, 1, 70, 24),
                                                   (3, 1, 5, 131, 64)):
                q = torch.randn(2, queries, heads, size).to(dtype).transpose(1, 2)
                room = torch.randn(2, 2, kv, keys + 9, size).to(dtype)
                k, v = room[0, :, :, :keys], room[1, :, :, :keys]
                mask = torch.randn(2, 1, 1, keys).to(dtype)
                mask[1] = -math.inf
                for causal, window in ((False, 0), (True, 0), (True, 4), (False, 4)):
                    for m in (None, mask):
                        got = ds.cached_attention(q, k, v, m, None, 0.3, causal, window)
                        want = plain_attention(q, k, v, 0.3, causal, m, window)
                        close(got, want.transpose(1, 2).reshape(got.shape), 2)

    def test_softmax_of_no_keys_and_of_all_masked_is_zeros(self):
        scores = torch.randn(1, 2, 3, 5)
        out = ds.masked_softmax(scores, torch.full((1, 1, 1, 5), -math.inf), None)
        self.assertTrue(torch.equal(out, torch.zeros_like(scores)))
        self.assertEqual(ds.masked_softmax(scores[..., :0], None, None).shape, (1, 2, 3, 0))
        empty = torch.randn(1, 2, 0, 8)
        out = ds.cached_attention(torch.randn(1, 2, 3, 8), empty, empty, None, None, 1.0)
        self.assertTrue(torch.equal(out, torch.zeros(1, 3, 16)))

    def test_what_does_not_fit_is_refused_with_the_same_words_everywhere(self):
        for device in ("cpu", "meta"):
            x = torch.empty(2, 3, 8, device=device)
            g = torch.empty(8, device=device)
            for words, call in (
                    ("gamma must be \\[8\\]", lambda: ds.rms_norm(x, g[:7], 1e-5)),
                    ("device and dtype", lambda: ds.rms_norm(x, g.half(), 1e-5)),
                    ("float32, float16 or bfloat16", lambda: ds.rms_norm(x.double(), g, 1e-5)),
                    ("residual must have the input's shape",
                     lambda: ds.rms_norm_residual(x, x[:1], g, 1e-5)),
                    ("\"swish\" is not known", lambda: ds.bias_activation(x, None, "swish")),
                    ("as many of each", lambda: ds.gated_activation(x[..., :7], None, "silu")),
                    ("heads cannot share", lambda: ds.cached_attention(
                        x[None].expand(1, 2, 3, 8), x.new_empty(1, 3, 4, 8),
                        x.new_empty(1, 3, 4, 8), None, None, 1.0)),
                    ("rotary_dim must be even", lambda: ds.rotary_(x[None], None, 0, 5, True)),
                    ("mask must be", lambda: ds.masked_softmax(x[None], g, None))):
                with self.assertRaisesRegex(RuntimeError, words):
                    call()

    def test_meta_tensors_have_the_shapes_of_the_results(self):
        q = torch.empty(2, 4, 5, 8, device="meta")
        self.assertEqual(ds.cached_attention(q, q[:, :2], q[:, :2], None, None, 1.0).shape,
                         (2, 5, 32))
        self.assertEqual(ds.gated_activation(q, None, "gelu").shape, (2, 4, 5, 4))

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled_it_gives_the_same(self):
        x, g = torch.randn(2, 3, 8), torch.randn(8)

        def f(x, g):
            out, added = ds.rms_norm_residual(x, x * 2, g, 1e-5)
            return ds.gated_activation(out, None, "silu"), added
        for got, want in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(x, g), f(x, g)):
            torch.testing.assert_close(got, want)


def rotated(x, dim, offset, half, theta=10000.0):
    """[B, H, S, D], float64, by complex numbers."""
    x = x.double().clone()
    angle = ((torch.arange(x.shape[2]) + offset)[:, None] *
             theta ** (-torch.arange(0, dim, 2).double() / dim)[None, :])
    turn = torch.polar(torch.ones_like(angle), angle)
    a, b = ((slice(0, dim // 2), slice(dim // 2, dim)) if half else
            (slice(0, dim, 2), slice(1, dim, 2)))
    turned = torch.complex(x[..., a], x[..., b]) * turn
    x[..., a], x[..., b] = turned.real, turned.imag
    return x


class DeepSpeedsFunctions(unittest.TestCase):
    def test_a_prompt_and_tokens_after_it_see_all_that_came_before(self):
        for heads, kv, half in ((4, 4, True), (4, 2, False)):
            module = load("transformer_inference")
            layers, size, batch, prompt, more = 2, 16, 2, 5, 4
            qkv = torch.randn(layers, batch, prompt + more, (heads + 2 * kv) * size)
            norm = size ** -0.25
            got = [[] for _ in range(layers)]
            for first, last in [(0, prompt)] + [(prompt + i, prompt + i + 1) for i in range(more)]:
                for layer in range(layers):
                    out, key, _ = module.softmax_context_fp32(
                        qkv[layer, :, first:last], torch.empty(1), 8, half, not half, heads, kv,
                        norm, True, False, 1, False, layer, layers, torch.empty(1), 10000.0)
                    self.assertEqual(key.shape, (batch, kv, last, size))
                    got[layer].append(out)
            for layer in range(layers):
                x = qkv[layer].view(batch, -1, heads + 2 * kv, size).transpose(1, 2)
                q, k, v = x.split([heads, kv, kv], 1)
                want = plain_attention(rotated(q, 8, 0, half), rotated(k, 8, 0, half), v,
                                       norm * norm, causal=True)
                close(torch.cat(got[layer], 1),
                      want.transpose(1, 2).reshape(batch, prompt + more, -1))

    def test_models_of_other_shapes_have_other_caches_and_a_full_one_grows(self):
        module = load("transformer_inference")
        module.allocate_workspace_fp32(64, 4, 3, 1, 1, 1, False, 0, 4, 1)

        def run(x, heads):
            return module.softmax_context_fp32(
                x, torch.empty(1), 0, False, False, heads, heads, 1.0, True, False, 1, True, 0, 1,
                torch.empty(1))[1].shape[2]
        for i in range(10):
            self.assertEqual(run(torch.randn(1, 1, 192), 4), i + 1)
            self.assertEqual(run(torch.randn(1, 1, 96), 2), i + 1)
        module.repeat_kv_cache_fp32(1, 3)
        self.assertEqual(run(torch.randn(3, 1, 96), 2), 11)
        module.reset_cache()
        self.assertEqual(run(torch.randn(3, 1, 96), 2), 1)
        module.release_workspace()
        self.assertEqual(run(torch.randn(1, 1, 96), 2), 1)
        self.assertTrue(module.retake_workspace())

    def test_softmax_with_alibi_of_one_rank_of_two_and_a_mask(self):
        for dtype, name in zip(DTYPES, ("fp32", "fp16", "bf16")):
            scores = torch.randn(2, 3, 4, 10).to(dtype)
            mask = torch.randn(2, 1, 1, 10).to(dtype)
            alibi = torch.randn(2 * 6, 1, 10).to(dtype)
            want = (scores.double() * 0.5 + mask.double() +
                    alibi.double().view(2, 6, 1, 10)[:, 3:]).softmax(-1)
            got = getattr(deepspeed, "softmax_" + name)(scores.clone(), mask, alibi, False, True,
                                                        False, 1, False, 0.5, 3, 2)
            close(got, want)
            flat = getattr(deepspeed, "softmax_" + name)(
                scores.clone(), mask[:, 0, 0], torch.empty(1), False, True, False, 1, False, 1.0, 0,
                1)
            close(flat, (scores.double() + mask.double()).softmax(-1))

    def test_layers_of_products_are_those_of_their_formulas(self):
        x, r = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
        b16, g, beta, b32 = torch.randn(16), torch.randn(16), torch.randn(16), torch.randn(32)
        w1, w2, e = torch.randn(16, 32) / 4, torch.randn(32, 16) / 4, torch.empty(1)
        d = [t.double() for t in (x, r, b16, g, beta, b32, w1, w2)]

        def norm(t):
            return F.layer_norm(t, (16,), d[3], d[4], 1e-5)
        out, n = deepspeed.qkv_gemm_fp32(x, w1, e, b32, g, beta, 1e-5, True, False, False)
        close(n, norm(d[0]))
        close(out, norm(d[0]) @ d[6] + d[5], 10)
        out, n = deepspeed.mlp_gemm_fp32(x, r, b16, w1.t().contiguous(), w2.t().contiguous(), b32, g,
                                         beta, 1e-5, True, True, e, e, False, 2, True)
        want = norm(d[0] + d[1] + d[2])
        close(n, want)
        close(out, F.relu(want @ d[6] + d[5]) @ d[7], 20)
        into = r.clone()
        out, res = deepspeed.rms_mlp_gemm_fp32(x, into, w1, w2[:16], g, 1e-5, e, e, False, 4, False)
        s = d[0] + d[1]
        hidden = s / (s.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * d[3] @ d[6]
        close(out, hidden[..., :16] * F.silu(hidden[..., 16:]) @ d[7][:16], 20)
        self.assertIs(res, into)
        close(into, s)
        close(deepspeed.linear_layer_fp32(x, w1, b32, True, False, 2, False), d[0] @ d[6] + d[5], 10)
        heads = deepspeed.linear_layer_fp32(x, torch.randn(16, 48), torch.zeros(48), True, True, 2,
                                            False)
        self.assertEqual(heads.shape, (3, 2, 2, 3, 32))
        close(deepspeed.einsum_sec_sm_ecm_fp32(torch.eye(6).view(6, 2, 3), torch.eye(6)),
              torch.eye(6).view(2, 3, 6))

    def test_int8_weights_have_a_scale_for_each_group_of_rows(self):
        x = torch.randn(2, 3, 16)
        q = torch.randint(-128, 128, (32, 16), dtype=torch.int8)
        scale = torch.rand(4, 1) / 100
        w = (q.double().view(4, 8, 16) * scale.double().view(4, 1, 1)).view(32, 16)
        close(deepspeed.dequantize_fp32(q, scale, 4), w)
        close(deepspeed.dequantize_bf16(q, scale, 4), w)
        close(deepspeed.vector_matmul_fp32(x, q, False, scale, True, False), x.double() @ w.t(), 20)

    def test_residuals_are_added_in_deepspeeds_three_ways(self):
        h, r, a = (torch.randn(2, 3, 16) for _ in range(3))
        ab, fb = torch.randn(16), torch.randn(16)
        d = [t.double() for t in (h, r, a, ab, fb)]
        for mlp_after, preln, want in (
                (True, True, (d[1] + d[2] + d[4] + d[3]) / 2 + d[0]),
                (True, False, d[1] + d[0] + d[4]),
                (False, True, d[0] + d[2] + (d[1] + d[3] + d[4]) / 2)):
            into = r.clone()
            self.assertIs(deepspeed.residual_add_bias_fp32(h, into, a, ab, fb, 2, mlp_after, True,
                                                           preln), into)
            close(into, want)
            into = torch.zeros(2, 5, 16)[:, :3].copy_(r)  # As of a caller that takes tokens away.
            deepspeed.residual_add_bias_fp32(h, into, a, ab, fb, 2, mlp_after, True, preln)
            close(into, want)
        into = r.clone()
        close(deepspeed._vector_add(into, h, 0.5), 0.5 * d[1] + d[0])
        coef = torch.randn(2, 16)
        out = a.clone()
        close(deepspeed.moe_res_matmul(h, coef, out),
              d[2] * coef[1].double() + d[0] * coef[0].double())

    def test_a_star_import_as_that_of_a_drop_in_brings_what_begins_with_an_underscore(self):
        names = {}
        with unittest.mock.patch.dict(sys.modules, {"stand_in": deepspeed}):
            exec("from stand_in import *", names)
        self.assertIs(names["_vector_add"], deepspeed._vector_add)
        self.assertIs(names["softmax_context_bf16"], deepspeed.softmax_context_bf16)
        self.assertIs(names["layer_norm"], deepspeed.layer_norm)

    def test_all_functions_of_the_interface_are_there(self):
        for name in ("softmax", "softmax_context", "bias_gelu", "bias_add", "bias_relu",
                     "bias_residual", "qkv_gemm", "rms_qkv_gemm", "mlp_gemm", "rms_mlp_gemm",
                     "vector_matmul", "linear_layer", "fused_gemm_gelu", "residual_add_bias",
                     "einsum_sec_sm_ecm", "add_padding", "pad_transform", "allocate_workspace",
                     "repeat_kv_cache", "dequantize"):
            for dtype in ("fp32", "fp16", "bf16"):
                self.assertTrue(callable(getattr(deepspeed, f"{name}_{dtype}")), name)
        x = torch.randn(1, 2, 3, 20)
        q, k, _ = deepspeed.add_padding_fp32(x, x, x)
        self.assertEqual((q.shape, k.shape), ((1, 2, 3, 32), (1, 2, 128, 32)))
        q, k, _ = deepspeed.pad_transform_fp32(*[torch.randn(1, 3, 40)] * 3, 2, False)
        self.assertEqual(q.shape, (1, 2, 3, 20))
        out, _, _ = deepspeed.softmax_context_int8(
            torch.randn(1, 3, 16), torch.randn(1, 16, 5), None, None, torch.randn(1, 5, 16), None, 2,
            0.3, False, False, False, 1, True)
        self.assertEqual(out.shape, (1, 2, 3, 8))


if __name__ == "__main__":
    unittest.main()
