"""fused_adam, fused_lion and fused_lamb on the CPU through torch, the copies of the cpu_* ops, and
the modules with DeepSpeed's names. What each computes is tested element by element in C++."""

import importlib.util
import os
import pathlib
import unittest

import torch

BINARIES = os.environ["DS_OPS_BINARY_DIR"]
FOLDER = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
ds = torch.ops.ds
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPES = [(3, 5), (1000,), (0,), (7, 1, 3), (), (300, 41)]


def setUpModule():
    for op in ("fused_adam", "fused_lion", "fused_lamb", "cpu_adam", "cpu_lion", "cpu_adagrad"):
        library = f"{BINARIES}/ds_{op}/libds_{op}.so"
        if not os.path.exists(library):
            raise unittest.SkipTest(f"{op} is not built")
        torch.ops.load_library(library)


def module(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def tensors(param=F32, grad=None, state=F32, shapes=SHAPES, device="cpu"):
    torch.manual_seed(0)
    p, g, m, v = ([torch.randn(s, device=device) for s in shapes] for _ in range(4))
    return ([t.to(param) for t in p], [t.to(grad or param) for t in g],
            [0.1 * t.to(state) for t in m], [t.abs().to(state) for t in v])


def clones(*lists):
    return [[t.clone() for t in one] for one in lists]


def adam(p, g, m, v, copies=(), **options):
    ds.fused_adam_step(p, g, m, v, list(copies), **{"step": 1, "lr": 0.1, **options})


def lion(p, g, m, _, copies=(), **options):
    ds.fused_lion_step(p, g, m, list(copies), **{"lr": 0.1, **options})


def lamb(p, g, m, v, copies=(), **options):
    ds.fused_lamb_step(p, g, m, v, list(copies), **{"step": 1, "lr": 0.1, **options})


STEPS = (adam, lion, lamb)


class Case(unittest.TestCase):
    def assert_same(self, got, want):
        for a, b in zip(got, want):
            for x, y in zip(a, b):
                self.assertTrue(torch.equal(x, y))


class Steps(Case):
    def test_fused_adam_and_fused_lion_give_the_bits_of_the_cpu_ops(self):
        for types in ((F32, F32, F32), (F32, BF16, F32), (F16, F16, F32), (BF16, F32, BF16)):
            a = tensors(*types)
            b = clones(*a)
            adam(*a, step=5, weight_decay=0.1)
            p, g, m, v = b
            ds.cpu_adam_step(p, g, m, v, step=5, lr=0.1, weight_decay=0.1)
            self.assert_same(a, b)
            lion(*a, weight_decay=0.1)
            ds.cpu_lion_step(p, g, m, lr=0.1, weight_decay=0.1)
            self.assert_same(a, b)

    def test_AdamW_in_mixed_precision_follows_torch_in_float64(self):
        p, _, m, v = tensors()
        m, v = [t.zero_() for t in m], [t.zero_() for t in v]
        copies = [torch.empty_like(t, dtype=BF16) for t in p]
        reference = [torch.nn.Parameter(t.double()) for t in p]
        optimizer = torch.optim.AdamW(reference, lr=0.01, weight_decay=0.1)
        for step in range(1, 11):
            g = [torch.randn(s).to(BF16) for s in SHAPES]
            norm = torch.sqrt(sum((t.double() ** 2).sum() for t in g)).float()
            for q, h in zip(reference, g):
                q.grad = h.double() / 8
            torch.nn.utils.clip_grad_norm_(reference, 1.0)
            optimizer.step()
            adam(p, g, m, v, copies, step=step, lr=0.01, weight_decay=0.1, grad_scale=8.0,
                 max_norm=1.0, grad_norm=norm)
        for q, t, c in zip(reference, p, copies):
            torch.testing.assert_close(t.double(), q.detach(), rtol=1e-5, atol=1e-6)
            self.assertTrue(torch.equal(c, t.to(BF16)))

    def test_lamb_is_its_formula(self):
        p, g, m, v = tensors()
        old = clones(p, g, m, v)
        ratios = torch.full((len(p),), -1.0)
        lamb(p, g, m, v, step=3, weight_decay=0.1, trust_ratios=ratios)
        for i, (q, h, a, b) in enumerate(zip(*[[t.double() for t in one] for one in old])):
            if q.numel() == 0:
                self.assertEqual(ratios[i], -1.0)
                continue
            a, b = 0.9 * a + 0.1 * h, 0.999 * b + 0.001 * h * h
            u = a / (1 - 0.9 ** 3) / ((b / (1 - 0.999 ** 3)).sqrt() + 1e-8) + 0.1 * q
            ratio = (q.norm() / u.norm()).clamp(0.01, 10.0)
            torch.testing.assert_close(ratios[i].double(), ratio, rtol=1e-6, atol=0)
            torch.testing.assert_close(p[i].double(), q - 0.1 * ratio * u, rtol=1e-5, atol=1e-6)

    def test_numbers_in_tensors_give_what_the_same_numbers_give(self):
        for step in STEPS:
            a = tensors()
            b = clones(*a)
            count = torch.tensor(6)
            step(*a, step_on_device=count, lr_on_device=torch.tensor(0.25),
                 grad_scale_on_device=torch.tensor(4.0))
            self.assertEqual(count.item(), 7)
            step(*b, lr=0.25, grad_scale=4.0, **({} if step is lion else {"step": 7}))
            self.assert_same(a, b)
            before = clones(*a)
            step(*a, step_on_device=count, found_inf=torch.tensor(1.0))
            self.assertEqual(count.item(), 7)
            self.assert_same(a, before)

    def test_the_copies_of_the_cpu_ops_are_the_new_parameters(self):
        for dtype in (F16, BF16):
            p, g, m, v = tensors(grad=BF16)
            copies = [torch.empty_like(t, dtype=dtype) for t in p]
            extra = dict(grad_scale=4.0, max_norm=1.0, grad_norm=torch.tensor(8.0))
            for run in (lambda: ds.cpu_adam_step(p, g, m, v, copies, step=1, lr=0.1, **extra),
                        lambda: ds.cpu_lion_step(p, g, m, copies, lr=0.1, **extra),
                        lambda: ds.cpu_adagrad_step(p, g, v, copies, lr=0.1, **extra)):
                run()
                for t, c in zip(p, copies):
                    self.assertTrue(torch.equal(t.to(dtype), c))
        before = v[1].clone()
        ds.cpu_adagrad_step(p, g, v, copies, lr=0.1, **extra)
        torch.testing.assert_close(v[1], before + (g[1].float() / 4 / 2) ** 2, rtol=1e-5, atol=0)
        ds.cpu_adagrad_step(p, g, v, copies, lr=0.1, found_inf=torch.tensor(1.0))


class Errors(Case):
    def test_empty_lists_and_tensors_are_no_work(self):
        for step in STEPS:
            step([], [], [], [])
            step(*tensors(shapes=[(0,), (0, 4)]))

    def test_meta_tensors_are_checked_alike(self):
        p, g, m, v = tensors(shapes=[(4, 6)], device="meta")
        for step in STEPS:
            step(p, g, m, v)
            with self.assertRaisesRegex(RuntimeError, r"grads\[0\] has another shape"):
                step(p, [g[0][:2]], m, v)

    def test_a_slice_with_gaps_is_refused_by_index_shape_and_strides(self):
        lists = tensors(shapes=[(4, 6)])
        before = clones(*lists)
        for step in STEPS:
            with self.assertRaisesRegex(
                    RuntimeError, r"params\[0\] is not contiguous in memory.*\[4, 3\].*\[6, 2\]"):
                step(*[[t[0][:, ::2]] for t in lists])
        self.assert_same(lists, before)

    def test_wrong_numbers_are_refused(self):
        lists = tensors(shapes=[(4,)])
        with self.assertRaisesRegex(RuntimeError, "lr_on_device must be one element of Float"):
            adam(*lists, lr_on_device=torch.zeros(2))
        with self.assertRaisesRegex((RuntimeError, ValueError), "max_norm needs the gradients"):
            adam(*lists, max_norm=1.0)
        with self.assertRaisesRegex(RuntimeError, "trust_ratios must be 1 contiguous"):
            lamb(*lists, trust_ratios=torch.zeros(2))

    def test_a_backward_pass_through_an_overwritten_value_fails(self):
        for step in STEPS:
            p, g, m, v = tensors(shapes=[(4,)])
            p[0].requires_grad_(True)
            loss = (p[0] * p[0]).sum()
            with torch.no_grad():
                step(p, g, m, v)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()


class DeepSpeedNames(Case):
    """FusedAdam and FusedLion of DeepSpeed call these on a CPU accelerator, too."""

    noop = torch.zeros(1, dtype=torch.int32)

    def test_multi_tensor_adam_is_torchs_AdamW(self):
        fused_adam = module("fused_adam")
        p, g, m, v = tensors()
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

    def test_multi_tensor_lion_and_lamb_are_the_ops(self):
        a = tensors(BF16)
        b = clones(*a)
        p, g, m, v = a
        module("fused_lion").multi_tensor_lion(65536, self.noop, [g, p, m], 0.01, 0.9, 0.99, 1, 0.1)
        lion(*b, lr=0.01, weight_decay=0.1)
        self.assert_same(a, b)
        ratio = module("fused_lamb").lamb(p[1], torch.empty(0), m[1], v[1], g[1], 0.01, 0.9, 0.999,
                                          10.0, 0.01, 1e-8, 1.0, 1, 1, 1, 0.1)
        self.assertEqual(ratio.numel(), 1)
        self.assertGreater(ratio.item(), 0.0)


if __name__ == "__main__":
    unittest.main()
