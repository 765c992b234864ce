"""spatial_inference through torch: layouts, autograd, torch.compile, graphs, errors."""

import glob
import os
import unittest

import torch

for library in glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_spatial_*/libds_*.so"):
    torch.ops.load_library(library)
ds = torch.ops.ds

HAVE = torch.cuda.is_available()
needs_gpu = unittest.skipUnless(HAVE, "no CUDA device")
DEVICES = ["cpu"]
if HAVE and torch._C._dispatch_has_kernel_for_dispatch_key("ds::nhwc_bias_add", "CUDA"):
    DEVICES.append("cuda")


def image(n, c, h, w, dtype=torch.float32, device="cpu"):
    return torch.randn(n, c, h, w, dtype=dtype, device=device).to(memory_format=torch.channels_last)


def plain(x, bias, other=None, other_bias=None):
    out = x.double() + bias.double()[:, None, None]
    if other is not None:
        out = out + other.double()
    if other_bias is not None:
        out = out + other_bias.double()[:, None, None]
    return out


class SpatialInference(unittest.TestCase):
    def test_each_sum_is_right_in_torchs_layout(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for c in (1, 3, 64, 320):
                    x, y = (image(2, c, 5, 7, dtype, device) for _ in range(2))
                    b, d = (torch.randn(c, dtype=dtype, device=device) for _ in range(2))
                    for got, want in ((ds.nhwc_bias_add(x, b), plain(x, b)),
                                      (ds.nhwc_bias_add_add(x, b, y), plain(x, b, y)),
                                      (ds.nhwc_bias_add_bias_add(x, b, y, d), plain(x, b, y, d))):
                        torch.testing.assert_close(got, want.to(dtype))
                        self.assertTrue(got.is_contiguous(memory_format=torch.channels_last))

    def test_gradients_are_those_of_a_sum(self):
        for device in DEVICES:
            x, y = (image(2, 3, 4, 4, device=device).requires_grad_() for _ in range(2))
            b, d = (torch.randn(3, device=device, requires_grad=True) for _ in range(2))
            weight = image(2, 3, 4, 4, device=device)
            (ds.nhwc_bias_add_bias_add(x, b, y, d) * weight).sum().backward()
            got = [t.grad for t in (x, b, y, d)]
            for t in (x, b, y, d):
                t.grad = None
            (((x + b[:, None, None]) + (y + d[:, None, None])) * weight).sum().backward()
            for g, t in zip(got, (x, b, y, d)):
                torch.testing.assert_close(g, t.grad, rtol=1e-4, atol=1e-4)
            x.grad = b.grad = None
            ds.nhwc_bias_add(x, b).sum().backward()
            self.assertTrue(torch.equal(b.grad, torch.full_like(b, 32.0)))

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled_it_gives_the_same(self):
        for device in DEVICES:
            x, y = (image(2, 8, 5, 5, device=device) for _ in range(2))
            b = torch.randn(8, device=device)

            def f(x, b, y):
                return ds.nhwc_bias_add_add(x * 2, b, y) + 1
            compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(x, b, y), f(x, b, y))

    @needs_gpu
    def test_compiled_and_captured_it_gives_the_same(self):
        x, y = (image(2, 8, 5, 5, device="cuda") for _ in range(2))
        b = torch.randn(8, device="cuda")

        def f(x, b, y):
            return ds.nhwc_bias_add_add(x * 2, b, y) + 1
        want = f(x, b, y)
        torch.testing.assert_close(torch.compile(f, fullgraph=True)(x, b, y), want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = f(x, b, y)
        x.add_(1)
        graph.replay()
        torch.testing.assert_close(out, f(x, b, y))

    def test_what_does_not_fit_is_refused_with_the_same_words_everywhere(self):
        for device in ["meta"] + DEVICES:
            x = image(2, 4, 3, 3, device=device)
            b = torch.empty(4, device=device)
            self.assertEqual(ds.nhwc_bias_add(x, b).shape, x.shape)
            with self.assertRaisesRegex(RuntimeError, "contiguous as channels_last"):
                ds.nhwc_bias_add(x.contiguous(), b)
            with self.assertRaisesRegex(RuntimeError, "bias must be 4 contiguous elements"):
                ds.nhwc_bias_add(x, b[:3])
            with self.assertRaisesRegex(RuntimeError, "other must have the input's shape"):
                ds.nhwc_bias_add_add(x, b, x[:1])
            with self.assertRaisesRegex(RuntimeError, "device and dtype"):
                ds.nhwc_bias_add(x, b.half())


if __name__ == "__main__":
    unittest.main()
