"""The CPU optimizers under DeepSpeed's names, called as DeepSpeed calls them, against torch's own."""

import ast
import importlib.util
import json
import os
import pathlib
import unittest

import torch

BINARIES = os.environ["DS_OPS_BINARY_DIR"]
KERNELS = pathlib.Path(os.environ["DS_KERNELS_DIR"])
FOLDER = KERNELS / "python" / "ds_ops" / "deepspeed"


def load(op):
    library = f"{BINARIES}/ds_{op}/libds_{op}.so"
    if not os.path.exists(library):
        raise unittest.SkipTest(f"{op} is not built")
    torch.ops.load_library(library)
    spec = importlib.util.spec_from_file_location(op, FOLDER / f"{op}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problem():
    torch.manual_seed(1)
    x = torch.randn(1001)
    return x, [torch.randn(1001) for _ in range(5)]


class Table(unittest.TestCase):
    def test_it_names_the_module_that_op_json_names(self):
        text = (FOLDER / "__init__.py").read_text()
        tree = next(node for node in ast.parse(text).body if isinstance(node, ast.Assign))
        table = ast.literal_eval(tree.value)
        self.assertEqual(sorted(table), sorted(path.stem for path in FOLDER.glob("*.py")
                                               if path.stem != "__init__"))
        for own, (module, op) in table.items():
            described = json.loads((KERNELS / op / "op.json").read_text())
            if own == op:
                self.assertEqual(module, described["deepspeed"]["module"])


class Adam(unittest.TestCase):
    def compare(self, adamw):
        adam = load("cpu_adam")
        x, grads = problem()
        expected = x.clone().requires_grad_()
        kind = torch.optim.AdamW if adamw else torch.optim.Adam
        optimizer = kind([expected], lr=1e-2, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1)
        m, v = torch.zeros_like(x), torch.zeros_like(x)
        adam.create_adam(7, 1e-2, 0.8, 0.95, 1e-7, 0.1, adamw, False)
        for step, grad in enumerate(grads, 1):
            expected.grad = grad.clone()
            optimizer.step()
            before = [t.clone() for t in (x, m, v)]
            self.assertEqual(adam.adam_update(7, step, 1e-2, 0.8, 0.95, 1e-7, 0.1, True, x, grad,
                                              m, v), 0)
            after = [t.clone() for t in (x, m, v)]
            adam.adam_rollback(7, step, 1e-2, 0.8, 0.95, 1e-7, 0.1, True, x, grad, m, v)
            for found, wanted in zip((x, m, v), before):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            for kept, value in zip((x, m, v), after):
                kept.copy_(value)
        torch.testing.assert_close(x, expected.detach(), rtol=1e-5, atol=1e-6)
        self.assertEqual(adam.destroy_adam(7), 0)

    def test_adamw_is_torchs(self):
        self.compare(True)

    def test_adam_is_torchs(self):
        self.compare(False)

    def test_an_optimizer_that_was_not_made_is_an_error(self):
        adam = load("cpu_adam")
        x, (grad, *_) = problem()
        with self.assertRaisesRegex(RuntimeError, "there is no optimizer 99"):
            adam.adam_update(99, 1, 1e-2, 0.9, 0.99, 1e-8, 0, True, x, grad, x.clone(), x.clone())

    def test_a_call_counts_with_its_own_numbers(self):
        adam = load("cpu_adam")
        x, (grad, *_) = problem()

        def moved(optimizer, lr, decay):
            y = x.clone()
            adam.adam_update(optimizer, 1, lr, 0.9, 0.99, 1e-8, decay, True, y, grad,
                             torch.zeros_like(x), torch.zeros_like(x))
            return y - x

        adam.create_adam(1, 1e-2, 0.9, 0.99, 1e-8, 0, True, False)
        adam.create_adam(2, 1e-2, 0.9, 0.99, 1e-8, 0, False, False)
        first = moved(1, 1e-2, 0.5)
        self.assertTrue(torch.allclose(moved(1, 2e-2, 0.5), 2 * first, rtol=1e-3, atol=1e-6))
        self.assertFalse(torch.allclose(moved(2, 1e-2, 0.5), first, rtol=1e-3, atol=1e-6))
        self.assertTrue(torch.equal(moved(1, 1e-2, 0.5), first))
        # Made anew under the same id, it is of the new kind.
        of_the_other = moved(2, 1e-2, 0.5)
        adam.create_adam(1, 1e-2, 0.9, 0.99, 1e-8, 0, False, False)
        self.assertTrue(torch.equal(moved(1, 1e-2, 0.5), of_the_other))
        adam.destroy_adam(1)
        with self.assertRaisesRegex(RuntimeError, "there is no optimizer 1"):
            moved(1, 1e-2, 0.5)

    def test_the_copy_is_what_was_computed(self):
        adam = load("cpu_adam")
        x, (grad, *_) = problem()
        copy = torch.zeros(1001, dtype=torch.float16)
        adam.create_adam(8, 1e-2, 0.9, 0.99, 1e-8, 0, True, False)
        adam.adam_update_copy(8, 1, 1e-2, 0.9, 0.99, 1e-8, 0, True, x, grad, torch.zeros_like(x),
                              torch.zeros_like(x), copy)
        self.assertTrue(torch.equal(copy, x.half()))


class Adagrad(unittest.TestCase):
    def test_it_is_torchs(self):
        adagrad = load("cpu_adagrad")
        x, grads = problem()
        expected = x.clone().requires_grad_()
        optimizer = torch.optim.Adagrad([expected], lr=1e-2, eps=1e-8)
        v = torch.zeros_like(x)
        adagrad.create_adagrad(1, 1e-2, 1e-8, 0.0, False)
        for step, grad in enumerate(grads, 1):
            expected.grad = grad.clone()
            optimizer.step()
            self.assertEqual(adagrad.adagrad_update(1, step, 1e-2, 1e-8, 0.0, x, grad, v), 0)
        torch.testing.assert_close(x, expected.detach(), rtol=1e-5, atol=1e-6)
        adagrad.destroy_adagrad(1)


class Lion(unittest.TestCase):
    def test_it_is_its_formula(self):
        lion = load("cpu_lion")
        x, grads = problem()
        expected, m_expected = x.double(), torch.zeros_like(x).double()
        m = torch.zeros_like(x)
        lion.create_lion(1, 1e-2, 0.9, 0.99, 0.1, False)
        for step, grad in enumerate(grads, 1):
            update = torch.sign(0.9 * m_expected + (1 - 0.9) * grad.double())
            expected = expected * (1 - 1e-2 * 0.1) - 1e-2 * update
            m_expected = 0.99 * m_expected + (1 - 0.99) * grad.double()
            self.assertEqual(lion.lion_update(1, step, 1e-2, 0.9, 0.99, 0.1, x, grad, m), 0)
        torch.testing.assert_close(x, expected.float(), rtol=1e-5, atol=1e-6)
        lion.destroy_lion(1)


if __name__ == "__main__":
    unittest.main()
