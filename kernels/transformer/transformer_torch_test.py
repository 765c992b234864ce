"""The layer through torch: against torch's own in float64, gradcheck, options, DeepSpeed's names."""

import glob
import importlib.util
import math
import os
import pathlib
import sys
import types
import unittest
import unittest.mock

import torch
import torch.nn.functional as F

for library in glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_transformer/libds_*.so"):
    torch.ops.load_library(library)
ds = torch.ops.ds
MODULES = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
B, S, H, E, I = 2, 7, 2, 16, 24
OPTIONS = [(pre, inv, gelu) for pre in (True, False) for inv in (True, False)
           for gelu in (True, False)]


def weights(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    shapes = [(3 * E, E), (3 * E,), (E, E), (E,), (E,), (E,), (I, E), (I,), (E, I), (E,), (E,), (E,)]
    made = [torch.randn(s, dtype=torch.float64) / 4 for s in shapes]
    for norm in (4, 10):
        made[norm] = made[norm] + 1.5
    return [w.to(dtype).requires_grad_() for w in made]


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def plain(x, mask, w, pre):
    """The layer without dropout, by torch's own functions."""
    def norm(t, i):
        return F.layer_norm(t, (E,), w[i], w[i + 1], 1e-12)
    b, s, _ = x.shape
    qkv = F.linear(norm(x, 10) if pre else x, w[0], w[1]).view(b, s, 3, H, E // H)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) / math.sqrt(E // H)
    if mask is not None:
        scores = scores + mask
    context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, E)
    added = x + F.linear(context, w[2], w[3])
    normed = norm(added, 4)
    out = F.linear(gelu_tanh(F.linear(normed, w[6], w[7])), w[8], w[9])
    return added + out if pre else norm(normed + out, 10)


def layer(x, mask, w, pre, inv=False, gelu=False, dropout=0.0, seed=3, offset=5, training=True):
    return ds.transformer_layer(x, mask, w, H, dropout, dropout, 1e-12, seed, offset, training, pre,
                                inv, gelu)


class Layer(unittest.TestCase):
    def test_output_and_gradients_are_torchs_with_all_options(self):
        # Of 16 bits, every stage rounds: judged by the largest element.
        for dtype, step in ((torch.float64, 1e-10), (torch.float32, 3e-5), (torch.float16, 2e-2),
                            (torch.bfloat16, 1.5e-1)):
            for pre, inv, gelu in OPTIONS:
                w = weights(dtype)
                x = torch.randn(B, S, E).to(dtype).requires_grad_()
                mask = torch.zeros(B, 1, 1, S, dtype=dtype)
                mask[0, ..., 4:] = -math.inf
                grad = torch.randn(B, S, E).to(dtype)
                try:
                    got = layer(x, mask, w, pre, inv, gelu)
                except RuntimeError as error:  # Old torch has no product of halves on the CPU.
                    self.assertIn("not implemented for 'Half'", str(error))
                    continue
                got.backward(grad)
                exact = [t.detach().double().requires_grad_() for t in [x] + w]
                want = plain(exact[0], mask.double(), exact[1:], pre)
                want.backward(grad.double())
                for a, b in [(got, want)] + [(t.grad, e.grad) for t, e in zip([x] + w, exact)]:
                    error = (a.double() - b).abs().max() / b.abs().max()
                    self.assertLess(error.item(), step, (dtype, pre, inv, gelu, a.shape))

    def test_gradients_are_those_of_differences_with_dropout(self):
        for pre, inv, gelu in OPTIONS:
            w = weights()
            x = torch.randn(1, 5, E, dtype=torch.float64, requires_grad=True)

            def f(x, *w):
                return layer(x, None, list(w), pre, inv, gelu, dropout=0.3)
            self.assertTrue(torch.autograd.gradcheck(f, (x, *w), fast_mode=True))

    def test_dropout_follows_from_seed_and_offset_and_is_off_outside_of_training(self):
        w, x = weights(torch.float32), torch.randn(B, S, E)
        first = layer(x, None, w, True, dropout=0.2)
        self.assertTrue(torch.equal(first, layer(x, None, w, True, dropout=0.2)))
        self.assertFalse(torch.equal(first, layer(x, None, w, True, dropout=0.2, offset=6)))
        self.assertFalse(torch.equal(first, layer(x, None, w, True, dropout=0.2, seed=4)))
        self.assertTrue(torch.equal(layer(x, None, w, True, dropout=0.2, training=False),
                                    layer(x, None, w, True)))

    def test_a_sequence_that_sees_nothing_has_finite_gradients(self):
        w, x = weights(torch.float32), torch.randn(B, S, E, requires_grad=True)
        out = layer(x, torch.full((B, 1, 1, S), -math.inf), w, True)
        out.sum().backward()
        self.assertTrue(all(bool(t.isfinite().all()) for t in [out, x.grad] + [t.grad for t in w]))

    def test_what_is_not_contiguous_or_empty_is_computed_as_it_is(self):
        w = weights(torch.float32)
        x = torch.randn(S, B, E).transpose(0, 1)
        self.assertTrue(torch.equal(layer(x, None, w, False),
                                    layer(x.contiguous(), None, w, False)))
        for shape in ((0, S, E), (B, 0, E)):
            x = torch.randn(shape, requires_grad=True)
            layer(x, None, w, True).sum().backward()
            self.assertEqual(x.grad.shape, shape)
        self.assertTrue(all(bool((t.grad == 0).all()) for t in w))

    def test_what_does_not_fit_is_refused_with_the_same_words_everywhere(self):
        for device in ("cpu", "meta"):
            w = [t.detach().to(device) for t in weights(torch.float32)]
            x = torch.empty(B, S, E, device=device)
            for words, call in (
                    ("must be \\[B, S, E\\]", lambda: layer(x[0], None, w, True)),
                    ("12 weights", lambda: layer(x, None, w[:11], True)),
                    ("inter_b must be", lambda: layer(x, None, w[:7] + w[6:7] + w[8:], True)),
                    ("less than 1", lambda: layer(x, None, w, True, dropout=1.0)),
                    ("the mask must be", lambda: layer(x, x[:, None, :, :3], w, True)),
                    ("dtype must be", lambda: layer(x.int(), None, w, True))):
                with self.assertRaisesRegex(RuntimeError, words):
                    call()
        self.assertEqual(layer(x, None, w, True).shape, x.shape)
        x = torch.randn(1, 3, E, dtype=torch.float64, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "no second derivative"):
            torch.autograd.grad(layer(x, None, weights(), True).sum(), x, create_graph=True)


class DeepSpeedsFunctions(unittest.TestCase):
    def test_forward_and_backward_as_its_python_calls_them(self):
        spec = importlib.util.spec_from_file_location("ds_transformer_module",
                                                      MODULES / "transformer.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with self.assertRaisesRegex(ValueError, "there is no layer 7"):
            module.forward_fp32(7, *[None] * 19)
        for number, (pre, inv, gelu) in enumerate(OPTIONS):
            module.create_transformer_layer_fp32(number, B, E, H, I, 0.1, 0.1, 1e-12, 3, pre, False,
                                                 True, inv, gelu, False)
            w = weights(torch.float32)
            x, mask = torch.randn(B, S, E, requires_grad=True), torch.zeros(B, 1, 1, S)
            plainly = [t.detach() for t in w]
            out = module.forward_fp32(number, x.detach(), mask, *plainly, True, pre, True, inv, gelu)
            self.assertEqual(len(out), 17)
            (output, inp_norm, qkv, soft, ctx, attn_o, add_res, ff1, gelu_inp, ff2, m1, m2, m3, v1,
             u1, v2, u2) = out
            offset = m1[1].item()
            want = layer(x, mask, w, pre, inv, gelu, dropout=0.1, offset=offset)
            self.assertTrue(torch.equal(output, want))
            grad = torch.randn(B, S, E)
            want.backward(grad)
            got = module.backward_fp32(
                number, grad, inp_norm if pre and inv else output,
                inp_norm if pre or not inv else x.detach(), qkv, soft, soft, attn_o,
                ff1 if inv else add_res, ff1, ff2 if gelu else gelu_inp, ff2, m1, m2, m3, v1, u1, v2,
                u2, inp_norm if pre and inv else x.detach(), mask, *plainly)
            for a, b in zip(got, [x] + w):
                self.assertTrue(torch.equal(a, b.grad), (pre, inv, gelu, a.shape))

    def test_the_stochastic_module_repeats_to_the_bit_like_the_other(self):
        package = types.ModuleType("stand_ins")
        package.__path__ = [str(MODULES)]
        with unittest.mock.patch.dict(sys.modules, {"stand_ins": package}):
            module = importlib.import_module("stand_ins.stochastic_transformer")
        w = [t.detach() for t in weights(torch.float32)]
        x, mask = torch.randn(B, S, E), torch.zeros(B, 1, 1, S)
        outputs = []
        for create, forward in ((module.create_transformer_layer_fp32, module.forward_fp32),
                                (module.create_transformer_layer_fp16, module.forward_fp16)):
            create(0, B, E, H, I, 0.1, 0.1, 1e-12, 3, True, False, True, False, False, True)
            for _ in range(2):
                out = forward(0, x, mask, *w, True, True, True, False, False)
                outputs.append(out[0])
                want = layer(x, mask, w, True, dropout=0.1, offset=out[10][1].item())
                self.assertTrue(torch.equal(out[0], want))
        self.assertFalse(torch.equal(outputs[0], outputs[1]))
        self.assertTrue(torch.equal(outputs[0], outputs[2]))
        self.assertTrue(torch.equal(outputs[1], outputs[3]))


if __name__ == "__main__":
    unittest.main()
