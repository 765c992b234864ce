"""The ops through torch: torch.ops.ds.*, with whatever torch they were built for."""

import glob
import os
import unittest

import torch

for library in sorted(glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_*/libds_*.so")):
    torch.ops.load_library(library)
ds = torch.ops.ds

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def tensors(shape, dtype, seed=0, state_dtype=None):
    torch.manual_seed(seed)
    p = torch.randn(shape).to(dtype)
    g = torch.randn(shape).to(dtype)
    m = torch.zeros(shape, dtype=state_dtype or dtype)
    v = torch.zeros(shape, dtype=state_dtype or dtype)
    return p, g, m, v


class AgainstTorch(unittest.TestCase):
    """torch's own optimizers in float64 are a second, independent reference."""

    def compare(self, make, step, shapes=((3, 5), (1000,), (0,), (7, 1, 3), ())):
        for steps in (1, 10):
            params = [torch.nn.Parameter(torch.randn(s, dtype=torch.float64)) for s in shapes]
            mine = [p.detach().float() for p in params]
            for p, q in zip(params, mine):
                p.data.copy_(q)
            optimizer = make(params)
            state = [[torch.zeros_like(q) for q in mine] for _ in range(2)]
            for t in range(1, steps + 1):
                grads = [torch.randn(s) for s in shapes]
                for p, g in zip(params, grads):
                    p.grad = g.double()
                optimizer.step()
                step(mine, grads, state, t)
            for p, q in zip(params, mine):
                self.assertTrue(torch.allclose(p.detach(), q.double(), rtol=2e-6 * steps,
                                               atol=2e-7 * steps))

    def test_AdamW_agrees_with_torch(self):
        self.compare(
            lambda ps: torch.optim.AdamW(ps, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
            lambda ps, gs, s, t: ds.cpu_adam_step(ps, gs, s[0], s[1], step=t, lr=0.01, beta1=0.8,
                                                  beta2=0.99, weight_decay=0.1))

    def test_Adam_with_L2_agrees_with_torch(self):
        self.compare(
            lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=0.1),
            lambda ps, gs, s, t: ds.cpu_adam_step(ps, gs, s[0], s[1], step=t, lr=0.01,
                                                  weight_decay=0.1, adamw=False))

    def test_Adagrad_with_weight_decay_agrees_with_torch(self):
        self.compare(
            lambda ps: torch.optim.Adagrad(ps, lr=0.1, weight_decay=0.1),
            lambda ps, gs, s, t: ds.cpu_adagrad_step(ps, gs, s[0], lr=0.1, weight_decay=0.1))

    def test_Lion_moves_by_the_sign(self):
        p, g, m, _ = tensors((100,), torch.float32)
        before = p.clone()
        ds.cpu_lion_step([p], [g], [m], lr=0.5)
        self.assertTrue(torch.equal(p, before - 0.5 * g.sign()))
        self.assertTrue(torch.allclose(m, 0.01 * g))

    def test_rollback_returns_the_parameters(self):
        for adamw in (True, False):
            p, g, m, v = tensors((64,), torch.float32)
            before = p.clone()
            arguments = dict(step=1, lr=0.1, weight_decay=0.1, adamw=adamw)
            ds.cpu_adam_step([p], [g], [m], [v], **arguments)
            self.assertFalse(torch.allclose(p, before))
            ds.cpu_adam_rollback([p], [g], [m], [v], **arguments)
            self.assertTrue(torch.allclose(p, before, rtol=1e-6, atol=1e-6))


class Types(unittest.TestCase):
    def test_every_combination_of_types_runs(self):
        for param in DTYPES:
            for grad in DTYPES:
                for state in {torch.float32, param}:
                    p, _, m, v = tensors((37,), param, state_dtype=state)
                    g = torch.ones(37).to(grad)
                    before = p.clone()
                    ds.cpu_adam_step([p], [g], [m], [v], step=1, lr=0.5)
                    self.assertTrue(torch.allclose(p.float(), before.float() - 0.5, atol=0.02))
                    ds.cpu_adagrad_step([p], [g], [v], lr=0.5)
                    ds.cpu_lion_step([p], [g], [m], lr=0.5)

    def test_other_types_are_refused(self):
        p, g, m, v = tensors((4,), torch.float64)
        with self.assertRaisesRegex(RuntimeError, r"params\[0\] has a dtype that is not float32"):
            ds.cpu_adam_step([p], [g], [m], [v], step=1, lr=0.1)

    def test_a_state_of_a_third_type_is_refused(self):
        p, g, m, v = tensors((4,), torch.float16, state_dtype=torch.bfloat16)
        with self.assertRaisesRegex(RuntimeError, r"exp_avgs\[0\] must be float32 or of its"):
            ds.cpu_adam_step([p], [g], [m], [v], step=1, lr=0.1)
        with self.assertRaisesRegex(RuntimeError, r"must have one dtype"):
            ds.cpu_adam_step([p], [g], [m.half()], [v.float()], step=1, lr=0.1)


class Layouts(unittest.TestCase):
    """A peer updates a copy of a non-contiguous parameter, and the update is lost."""

    def test_a_slice_with_gaps_is_refused_by_index_shape_and_strides(self):
        p, g, m, v = tensors((4, 6), torch.float32)
        hole = p[:, ::2]
        before = p.clone()
        fine = tensors((2,), torch.float32)
        with self.assertRaisesRegex(
                RuntimeError, r"params\[1\] is not contiguous in memory.*\[4, 3\].*\[6, 2\]"):
            ds.cpu_adam_step([fine[0], hole], [fine[1], g[:, :3].contiguous()],
                             [fine[2], m[:, :3].contiguous()], [fine[3], v[:, :3].contiguous()],
                             step=1, lr=0.1)
        self.assertTrue(torch.equal(p, before))

    def test_a_transposed_parameter_is_updated_in_place_where_its_state_is_transposed_too(self):
        p, g, m, v = tensors((5, 3), torch.float32)
        want = [t.clone() for t in (p, m, v)]
        ds.cpu_adam_step([want[0]], [g], [want[1]], [want[2]], step=1, lr=0.1)
        ds.cpu_adam_step([p.t()], [g.t()], [m.t()], [v.t()], step=1, lr=0.1)
        self.assertTrue(torch.equal(p, want[0]))

    def test_a_gradient_in_another_order_of_memory_is_read_in_the_right_one(self):
        p, g, m, v = tensors((5, 3), torch.float32)
        want = [t.clone() for t in (p, m, v)]
        ds.cpu_adam_step([want[0]], [g], [want[1]], [want[2]], step=1, lr=0.1)
        ds.cpu_adam_step([p], [g.t().contiguous().t()], [m], [v], step=1, lr=0.1)
        self.assertTrue(torch.equal(p, want[0]))
        q, h, n, _ = tensors((4, 4), torch.float32)
        before = q.clone()
        ds.cpu_lion_step([q], [torch.ones(4, 1).expand(4, 4)], [n], lr=0.5)
        self.assertTrue(torch.equal(q, before - 0.5))

    def test_a_state_in_another_order_of_memory_is_refused(self):
        p, g, m, v = tensors((5, 3), torch.float32)
        with self.assertRaisesRegex(RuntimeError, r"exp_avgs\[0\] is laid out in memory otherwise"):
            ds.cpu_adam_step([p], [g], [m.t().contiguous().t()], [v], step=1, lr=0.1)

    def test_channels_last_is_updated(self):
        p, g, m, v = [t.to(memory_format=torch.channels_last)
                      for t in tensors((2, 3, 4, 5), torch.float32)]
        before = p.clone()
        ds.cpu_lion_step([p], [g], [m], lr=0.5)
        self.assertTrue(torch.equal(p, before - 0.5 * g.sign()))

    def test_lists_of_other_lengths_shapes_and_kinds_are_refused(self):
        p, g, m, v = tensors((4,), torch.float32)
        cases = {
            r"params has 1 tensors and grads has 0": ([p], [], [m], [v]),
            r"grads\[0\] has another shape than params\[0\]": ([p], [g[:3]], [m], [v]),
            r"grads\[0\] is sparse": ([p], [g.to_sparse()], [m], [v]),
            r"(params|exp_avgs|exp_avg_sqs)\[0\] and \1\[1\] share memory": ([p, p], [g, g], [m, m], [v, v]),
            r"share memory": ([p], [p], [m], [v]),
        }
        before = p.clone()
        for message, lists in cases.items():
            with self.assertRaisesRegex((RuntimeError, ValueError, NotImplementedError),
                                        message if "sparse" not in message else "parse"):
                ds.cpu_adam_step(*lists, step=1, lr=0.1)
        self.assertTrue(torch.equal(p, before))

    def test_empty_tensors_and_empty_lists(self):
        p, g, m, v = tensors((0, 3), torch.float32)
        ds.cpu_adam_step([p], [g], [m], [v], step=1, lr=0.1)
        ds.cpu_adam_step([], [], [], [], step=1, lr=0.1)
        ds.cpu_adam_rollback([], [], [], [], step=1, lr=0.1)
        ds.cpu_adagrad_step([], [], [], lr=0.1)
        ds.cpu_lion_step([], [], [], lr=0.1)

    def test_steps_count_from_one(self):
        p, g, m, v = tensors((4,), torch.float32)
        with self.assertRaisesRegex((RuntimeError, ValueError), "step counts from 1"):
            ds.cpu_adam_step([p], [g], [m], [v], step=0, lr=0.1)


class Torch(unittest.TestCase):
    def test_schemas_say_what_is_written(self):
        schema = str(ds.cpu_adam_step.default._schema)
        self.assertIn("Tensor(a!)[] params", schema)
        self.assertIn("Tensor[] grads", schema)
        self.assertTrue(schema.endswith("-> ()"))

    def test_meta_tensors_are_checked_and_cost_nothing(self):
        ts = [torch.empty((1 << 16, 1 << 16), device="meta") for _ in range(4)]
        ds.cpu_adam_step([ts[0]], [ts[1]], [ts[2]], [ts[3]], step=1, lr=0.1)
        ds.cpu_adam_rollback([ts[0]], [ts[1]], [ts[2]], [ts[3]], step=1, lr=0.1)
        ds.cpu_adagrad_step([ts[0]], [ts[1]], [ts[2]], lr=0.1)
        ds.cpu_lion_step([ts[0]], [ts[1]], [ts[2]], lr=0.1)
        with self.assertRaisesRegex(RuntimeError, "another shape"):
            ds.cpu_lion_step([ts[0]], [ts[1][:3]], [ts[2]], lr=0.1)

    def test_one_tensor_without_lists_is_stepped_to_the_same_bits(self):
        cases = {  # Of each op: how many states it has, its numbers, and what they mean.
            "cpu_adam_step": (2, [3, 0.01, 0.8, 0.95, 1e-7, 0.1, 0, 1],
                              dict(step=3, lr=0.01, beta1=0.8, beta2=0.95, eps=1e-7,
                                   weight_decay=0.1, adamw=False, bias_correction=True)),
            "cpu_adagrad_step": (1, [0.01, 1e-7, 0.1], dict(lr=0.01, eps=1e-7, weight_decay=0.1)),
            "cpu_lion_step": (1, [0.01, 0.8, 0.95, 0.1],
                              dict(lr=0.01, beta1=0.8, beta2=0.95, weight_decay=0.1)),
        }
        for op, (states, numbers, named) in cases.items():
            step = getattr(ds, op)
            for dtype in DTYPES:
                want = tensors((1003,), dtype, seed=5)[:2 + states]
                want[2].abs_().add_(0.25)
                got = [t.clone() for t in want]
                step(*([t] for t in want), **named)
                step.tensor(*got, torch.tensor(numbers, dtype=torch.float64))
                for a, b in zip(got, want):
                    self.assertTrue(torch.equal(a, b), (op, dtype))

    def test_one_tensor_without_lists_is_refused_as_a_list_is(self):
        for op, count, states in (("cpu_adam_step", 8, 2), ("cpu_adagrad_step", 3, 1),
                                  ("cpu_lion_step", 4, 1)):
            step = getattr(ds, op).tensor
            ts = tensors((4,), torch.float32)[:2 + states]
            before = [t.clone() for t in ts]
            for numbers in (torch.ones(count), torch.ones(count - 1, dtype=torch.float64),
                            torch.ones(2 * count, dtype=torch.float64)[::2]):
                with self.assertRaisesRegex(
                        RuntimeError,
                        rf"ds::{op}: numbers must be {count} contiguous elements of float64"):
                    step(*ts, numbers)
            fine = torch.full((count,), 0.5, dtype=torch.float64)
            fine[0] = 1
            with self.assertRaisesRegex(RuntimeError, r"grads\[0\] has another shape"):
                step(ts[0], ts[1][:3], *ts[2:], fine)
            for t, old in zip(ts, before):
                self.assertTrue(torch.equal(t, old), op)
            metas = [torch.empty(4, device="meta") for _ in ts]
            step(*metas, fine.to("meta"))
            with self.assertRaisesRegex(RuntimeError, "another shape"):
                step(metas[0], metas[1][:3], *metas[2:], fine.to("meta"))

    def test_a_backward_pass_through_an_overwritten_value_fails(self):
        p, g, m, _ = tensors((4,), torch.float32)
        p.requires_grad_(True)
        loss = (p * p).sum()
        with torch.no_grad():
            ds.cpu_lion_step([p], [g], [m], lr=0.1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_inference_tensors_are_updated(self):
        with torch.inference_mode():
            p, g, m, _ = tensors((4,), torch.float32)
            before = p.clone()
            ds.cpu_lion_step([p], [g], [m], lr=0.5)
            self.assertTrue(torch.equal(p, before - 0.5 * g.sign()))

    def test_the_number_of_threads_is_torchs_and_changes_nothing(self):
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            p, g, m, v = tensors((100_003,), torch.float32)
            ds.cpu_adam_step([p], [g], [m], [v], step=1, lr=0.1)
            results.append(p)
        self.assertTrue(torch.equal(*results))


if __name__ == "__main__":
    unittest.main()
