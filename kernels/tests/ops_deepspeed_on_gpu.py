"""The modules with DeepSpeed's names for the optimizers, random_ltd and spatial_inference, beside
the ops that they call and beside the formulas of DeepSpeed's kernels in float64."""

import glob
import importlib.util
import os
import pathlib
import unittest

import torch

for library in sorted(glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_*/libds_*.so")):
    torch.ops.load_library(library)
ds = torch.ops.ds
HAVE = torch.cuda.is_available()


def module(name):
    folder = pathlib.Path(__file__).resolve().parents[1] / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


fused_adam, fused_lion, fused_lamb = map(module, ("fused_adam", "fused_lion", "fused_lamb"))
random_ltd, spatial_inference = map(module, ("random_ltd", "spatial_inference"))
SHAPES = [(3, 5), (1000,), (0,), (300, 41)]


def lists(dtype, count=4):
    made = [[torch.randn(s, device="cuda").to(dtype) for s in SHAPES] for _ in range(count)]
    if count == 4:
        made[3] = [t.abs() for t in made[3]]
    return made


def clones(tensor_lists):
    return [[t.clone() for t in tensors] for tensors in tensor_lists]


@unittest.skipUnless(HAVE, "there is no CUDA device")
class DeepSpeedNames(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.noop = torch.zeros(1, dtype=torch.int32, device="cuda")

    def assertSame(self, got, want):
        for a, b in zip(got, want):
            for x, y in zip(a, b):
                self.assertTrue(torch.equal(x, y))

    def test_multi_tensor_adam_is_the_op_with_gradients_first(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for mode in (0, 1):
                for correction in (0, 1):
                    got = lists(dtype)
                    want = clones(got)
                    fused_adam.multi_tensor_adam(65536, self.noop, got, 0.01, 0.8, 0.9, 1e-6, 7,
                                                 mode, correction, 0.1)
                    g, p, m, v = want
                    ds.fused_adam_step(p, g, m, v, [], step=7, lr=0.01, beta1=0.8, beta2=0.9,
                                       eps=1e-6, weight_decay=0.1, adamw=mode == 1,
                                       bias_correction=correction == 1)
                    self.assertSame(got, want)

    def test_multi_tensor_adam_is_torchs_AdamW(self):
        g, p, m, v = lists(torch.float32)
        m, v = [t.zero_() for t in m], [t.zero_() for t in v]
        reference = [torch.nn.Parameter(t.double()) for t in p]
        optimizer = torch.optim.AdamW(reference, lr=0.01, weight_decay=0.1)
        for step in range(1, 4):
            for q, h in zip(reference, g):
                q.grad = h.double()
            optimizer.step()
            fused_adam.multi_tensor_adam(65536, self.noop, [g, p, m, v], 0.01, 0.9, 0.999, 1e-8,
                                         step, 1, 1, 0.1)
        for q, t in zip(reference, p):
            torch.testing.assert_close(t.double(), q.detach(), rtol=1e-5, atol=1e-6)

    def test_multi_tensor_lion_is_the_op_with_gradients_first(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            got = lists(dtype, 3)
            want = clones(got)
            fused_lion.multi_tensor_lion(65536, self.noop, got, 0.01, 0.8, 0.9, 3, 0.1)
            g, p, m = want
            ds.fused_lion_step(p, g, m, [], lr=0.01, beta1=0.8, beta2=0.9, weight_decay=0.1)
            self.assertSame(got, want)

    def test_lamb_corrects_the_bias_in_the_step_and_gives_the_ratio(self):
        for mode in (0, 1):
            for correction in (0, 1):
                p = torch.randn(5000, device="cuda")
                m, v = torch.randn_like(p) * 0.1, torch.rand_like(p) * 0.01
                g = torch.randn_like(p) * 4
                copy = torch.full_like(p, float("nan"), dtype=torch.float16)
                p_, m_, v_, g_ = (t.double() for t in (p, m, v, g))
                ratio = fused_lamb.lamb(p, copy, m, v, g, 0.01, 0.8, 0.9, 10.0, 0.01, 1e-3, 4.0, 7,
                                        mode, correction, 0.1)
                m_ = 0.8 * m_ + 0.2 * g_ / 4
                v_ = 0.9 * v_ + 0.1 * (g_ / 4) ** 2
                root = (v_ + 1e-3).sqrt() if mode == 0 else v_.sqrt() + 1e-3
                update = m_ / root + 0.1 * p_
                want = (p_.norm() / update.norm()).clamp(0.01, 10.0)
                lr = 0.01 * ((1 - 0.9 ** 7) ** 0.5 / (1 - 0.8 ** 7) if correction else 1.0)
                p_ = p_ - lr * want * update
                self.assertEqual(ratio.shape, (1,))
                self.assertAlmostEqual(ratio.item() / want.item(), 1.0, delta=1e-6)
                for got, expected in ((p, p_), (m, m_), (v, v_)):
                    torch.testing.assert_close(got.double(), expected, rtol=2e-6, atol=1e-7)
                self.assertTrue(torch.equal(copy, p.half()))

    def test_lamb_takes_an_empty_copy_of_the_CPU_and_leaves_one_of_32_bits(self):
        p = torch.randn(100, device="cuda", dtype=torch.bfloat16)
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        wide = torch.full((100,), 5.0, device="cuda")
        for copy in (torch.tensor([], dtype=torch.float), wide):
            before = p.clone()
            fused_lamb.lamb(p, copy, m, v, torch.randn_like(p), 0.1, 0.9, 0.999, 10.0, 0.01, 1e-8,
                            1.0, 1, 1, 1, 0.0)
            self.assertFalse(torch.equal(p, before))
        self.assertTrue(bool((wide == 5).all()))

    def test_random_ltd_as_its_python_functions_call_it(self):
        layers, batch, seq, kept = 3, 2, 5000, 3000
        ids = torch.multinomial(torch.ones(layers * batch, seq, device="cuda"), kept)
        ids = ids.reshape(layers, batch, kept).to(torch.int32)
        want = ids.sort(dim=-1).values
        self.assertIs(random_ltd.token_sort_(ids, seq), ids)
        self.assertTrue(torch.equal(ids, want))
        x = torch.randn(batch, seq, 64, device="cuda", dtype=torch.float16)
        rows = ids[1].long()[:, :, None].expand(-1, -1, 64)
        got = random_ltd.token_gather(x, ids[1], True)
        self.assertTrue(torch.equal(got, x.gather(1, rows)))
        scattered = random_ltd.token_scatter_(x, got * 2, ids[1], True)
        self.assertIs(scattered, x)
        self.assertTrue(torch.equal(x.gather(1, rows), got * 2))
        turned = x.transpose(0, 1).contiguous()
        self.assertTrue(torch.equal(random_ltd.token_gather(turned, ids[1], False),
                                    (got * 2).transpose(0, 1)))
        mask = torch.randn(batch, 1, 128, 128, device="cuda")
        some = torch.stack([torch.randperm(128, device="cuda")[:50].sort().values
                            for _ in range(layers * batch)]).int().view(layers, batch, 50)
        self.assertTrue(torch.equal(random_ltd.mask_gather_bert(mask, some),
                                    ds.mask_gather_bert(mask, some)))
        self.assertTrue(torch.equal(random_ltd.mask_gather_gpt(mask, 50), mask[:, :, :50, :50]))

    def test_biases_are_added_to_images_of_both_shapes(self):
        bias, other_bias = (torch.randn(32, device="cuda").half() for _ in range(2))
        x, y = (torch.randn(2, 32, 5, 7, device="cuda").half().to(
            memory_format=torch.channels_last) for _ in range(2))
        rows, more = (t.permute(0, 2, 3, 1).reshape(2, 35, 32) for t in (x, y))
        for name, images, biases in (
                ("nhwc_bias_add", (x, bias), (rows, bias)),
                ("nhwc_bias_add_add", (x, bias, y), (rows, bias, more)),
                ("nhwc_bias_add_bias_add", (x, bias, y, other_bias),
                 (rows, bias, more, other_bias))):
            want = getattr(ds, name)(*images)
            self.assertTrue(torch.equal(getattr(spatial_inference, name)(*images), want))
            got = getattr(spatial_inference, name)(*biases)
            self.assertEqual(got.shape, rows.shape)
            self.assertTrue(got.is_contiguous())
            self.assertTrue(torch.equal(got, want.permute(0, 2, 3, 1).reshape(2, 35, 32)))


if __name__ == "__main__":
    unittest.main()
