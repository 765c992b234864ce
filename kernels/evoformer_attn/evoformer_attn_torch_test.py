"""evoformer_attn through torch, on every device that there is: gradients, layouts, torch.compile,
errors, and the module with DeepSpeed's names."""

import glob
import importlib.util
import os
import pathlib
import unittest

import torch

for library in glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_evoformer_attn/libds_*.so"):
    torch.ops.load_library(library)
ds = torch.ops.ds
BUILT = bool(glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_evoformer_attn/libds_*.so"))


def module(name):
    folder = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def plain(q, k, v, bias1=None, bias2=None):
    """The definition, in the tensors' own dtype."""
    scores = torch.einsum("bnihd,bnjhd->bnhij", q, k) / q.shape[-1] ** 0.5
    for bias in (bias1, bias2):
        if bias is not None:
            scores = scores + bias
    return torch.einsum("bnhij,bnjhd->bnihd", scores.softmax(-1), v)


@unittest.skipUnless(BUILT, "the op is not built")
class EvoformerAttn(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)

    def problem(self, dtype, length=21, dim=8, batch=2, sequences=3, heads=2, biases=3,
                gradients=True):
        def new(*shape):
            made = torch.randn(shape, dtype=torch.float64).to(dtype).to(self.device)
            return made.requires_grad_(gradients)
        q, k, v = (new(batch, sequences, length, heads, dim) for _ in range(3))
        return (q, k, v, new(batch, sequences, 1, 1, length) if biases & 1 else None,
                new(batch, 1, heads, length, length) if biases & 2 else None)

    def test_gradients_are_those_of_finite_differences(self):
        for biases in range(4):
            problem = self.problem(torch.float64, 5, 8, 1, 2, 2, biases)
            self.assertTrue(torch.autograd.gradcheck(lambda *x: ds.evoformer_attn(*x)[0], problem))

    def test_float64_is_the_definition_with_any_biases_and_any_of_them_for_all(self):
        for biases in range(4):
            problem = self.problem(torch.float64, 70, 12, biases=biases)
            self.assertLess((ds.evoformer_attn(*problem)[0] - plain(*problem)).abs().max(), 1e-12)
        q, k, v, bias1, bias2 = self.problem(torch.float64)
        for one in (bias1[:1, :1], bias1[:, :1], bias1):
            for two in (bias2[:1, :, :1], bias2[:, :, :1], bias2):
                leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, one, two)]
                got = torch.autograd.grad(ds.evoformer_attn(*leaves)[0].pow(2).sum(), leaves)
                want = torch.autograd.grad(plain(*leaves).pow(2).sum(), leaves)
                for a, b in zip(got, want):
                    self.assertEqual(a.shape, b.shape)
                    self.assertLess((a - b).abs().max(), 1e-11)

    def test_every_dtype_is_near_the_definition_in_float64(self):
        for dtype, near in ((torch.float32, 3e-6), (torch.float16, 3e-3), (torch.bfloat16, 3e-2)):
            problem = self.problem(dtype, 90, 32)
            wide = [x.detach().double().requires_grad_() for x in problem]
            out, want = ds.evoformer_attn(*problem)[0], plain(*wide)
            weight = torch.randn_like(out)
            self.assertTrue(torch.allclose(out.double(), want, rtol=near, atol=near))
            got = torch.autograd.grad(out, problem, weight)
            wanted = torch.autograd.grad(want, wide, weight.double())
            for a, b in zip(got, wanted):
                self.assertEqual(a.dtype, dtype)
                self.assertTrue(torch.allclose(a.double(), b, rtol=near, atol=3 * near))

    def test_what_is_not_contiguous_gives_the_same(self):
        problem = self.problem(torch.float32, gradients=False)
        want = ds.evoformer_attn(*problem)
        turned = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in problem[:3]]
        spread = [torch.stack([x, x], -1)[..., 0] for x in problem]
        for other in ((*turned, *problem[3:]), spread):
            got = ds.evoformer_attn(*other)
            for a, b in zip(got, want):
                self.assertTrue(torch.equal(a, b))

    def test_masks_that_mask_everything_give_zeros_and_no_gradient(self):
        q, k, v, bias1, bias2 = self.problem(torch.float32)
        with torch.no_grad():
            bias1[1] = float("-inf")
        out, lse = ds.evoformer_attn(q, k, v, bias1, bias2)
        self.assertTrue((out[1] == 0).all() and (lse[1] == float("-inf")).all())
        out.sum().backward()
        for x in (q, k, v, bias1):
            self.assertTrue(torch.isfinite(x.grad).all() and (x.grad[1] == 0).all())
            self.assertGreater(x.grad[0].abs().max(), 0)

    def test_empty_tensors_give_empty_ones(self):
        for sizes in ({"batch": 0}, {"sequences": 0}, {"length": 0}, {"heads": 0}):
            problem = self.problem(torch.float32, **sizes)
            out, _ = ds.evoformer_attn(*problem)
            self.assertEqual(out.shape, problem[0].shape)
            out.sum().backward()
            self.assertTrue((problem[3].grad == 0).all())

    def test_only_gradients_that_are_wanted_are_computed(self):
        q, k, v, bias1, bias2 = self.problem(torch.float32)
        ds.evoformer_attn(q, k, v, bias1.detach(), bias2)[0].sum().backward()
        self.assertIsNone(bias1.grad)
        self.assertIsNotNone(bias2.grad)
        out = ds.evoformer_attn(q, k, v)[0]
        with self.assertRaisesRegex(RuntimeError, "differentiate once"):
            torch.autograd.grad(out.sum(), q, create_graph=True)

    def test_what_does_not_fit_is_one_clear_error(self):
        q, k, v, bias1, bias2 = self.problem(torch.float32, gradients=False)
        for bad, message in (
                ((q[0], k, v), "q must be"), ((q, k[:, :2], v), "k must have the shape"),
                ((q, k, v.double()), "v must have the shape, dtype"),
                ((q.int(), k.int(), v.int()), "dtype must be"),
                ((q[..., :4], k[..., :4], v[..., :4]), "from 8 to 128"),
                ((q, k, v, bias2), "bias1 must be"), ((q, k, v, None, bias1), "bias2 must be"),
                ((q, k, v, bias1.double()), "bias1 must have the dtype")):
            with self.assertRaisesRegex(RuntimeError, message):
                ds.evoformer_attn(*bad)

    def test_meta_tensors_have_the_shapes(self):
        problem = [x.detach().to("meta") for x in self.problem(torch.float16)]
        out, lse = ds.evoformer_attn(*problem)
        self.assertEqual((out.shape, out.dtype), (problem[0].shape, torch.float16))
        self.assertEqual((tuple(lse.shape), lse.dtype), ((2, 3, 2, 21), torch.float32))

    def test_deepspeeds_functions_write_what_they_are_given(self):
        names = module("evoformer_attn")
        q, k, v, bias1, bias2 = self.problem(torch.bfloat16)
        length, padded = 21, 32
        for biases in range(4):
            given = [b if biases >> i & 1 else None for i, b in enumerate((bias1, bias2))]
            none = q.new_empty(0)
            one, two = (none if b is None else b for b in given)
            out, want_lse = ds.evoformer_attn(q, k, v, *given)
            leaves = [x for x in (q, k, v, *given) if x is not None]
            weight = torch.randn_like(q)
            want = torch.autograd.grad(out, leaves, weight)
            with torch.no_grad():
                o = torch.empty_like(q)
                lse = torch.full((6, 2, padded), 7.0, device=self.device)
                names.attention(q, k, v, one, two, o, lse)
                self.assertTrue(torch.equal(o, out))
                self.assertTrue(torch.equal(lse.view(2, 3, 2, padded)[..., :length], want_lse))
                self.assertTrue((lse[..., length:] == 7).all())
                grads = [torch.empty_like(q) for _ in range(3)]
                of_biases = [torch.zeros(0 if b is None else b.shape, device=self.device)
                             for b in given]
                names.attention_bwd(weight, q, k, v, o, lse, torch.empty_like(lse), one, two, *grads,
                                    *of_biases)
                got = grads + [g.to(q.dtype) for g, b in zip(of_biases, given) if b is not None]
                for a, b in zip(got, want):
                    self.assertTrue(torch.equal(a, b))

    @unittest.skipUnless(hasattr(torch, "compile"), "torch has no compiler")
    def test_a_graph_of_it_gives_the_same(self):
        problem = self.problem(torch.float32)
        loss = lambda *x: ds.evoformer_attn(*x)[0].pow(2).sum()  # noqa: E731
        got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*problem),
                                  problem)
        for a, b in zip(got, torch.autograd.grad(loss(*problem), problem)):
            self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
