"""The optimizers on a GPU through torch: streams, graphs, torch.compile, drift, lists, errors.

What each computes is tested element by element in <op>/<op>_on_gpu.cc; here is what needs torch.
Without a GPU all but the shape checks are skipped.
"""

import glob
import os
import unittest

import torch

for library in sorted(glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_fused_*/libds_*.so")):
    torch.ops.load_library(library)
ds = torch.ops.ds

HAVE = torch.cuda.is_available()
needs_gpu = unittest.skipUnless(HAVE, "no CUDA device")
DEVICE = "cuda" if HAVE else "cpu"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def tensors(shapes, param=F32, grad=None, state=F32, device=DEVICE, seed=0):
    torch.manual_seed(seed)
    p = [torch.randn(s, device=device).to(param) for s in shapes]
    g = [torch.randn(s, device=device).to(grad or param) for s in shapes]
    m = [torch.zeros(s, dtype=state, device=device) for s in shapes]
    v = [torch.zeros(s, dtype=state, device=device) for s in shapes]
    return p, g, m, v


def clones(*lists):
    return [[t.clone() for t in tensors_] for tensors_ in lists]


def adam(p, g, m, v, **options):
    ds.fused_adam_step(p, g, m, v, [], **{"step": 1, "lr": 0.1, **options})


def lion(p, g, m, _, **options):
    options.pop("step", None)
    ds.fused_lion_step(p, g, m, [], **{"lr": 0.1, **options})


def lamb(p, g, m, v, **options):
    ds.fused_lamb_step(p, g, m, v, [], **{"step": 1, "lr": 0.1, **options})


STEPS = [(adam, "adam"), (lion, "lion"), (lamb, "lamb")]
SHAPES = [(3, 5), (1000,), (0,), (7, 1, 3), (), (300, 41)]


class AgainstTorch(unittest.TestCase):
    @needs_gpu
    def test_a_thousand_steps_of_AdamW_do_not_drift_from_float64(self):
        shapes = [(257, 33), (4096,)]
        p, _, m, v = tensors(shapes)
        reference = [torch.nn.Parameter(t.double()) for t in p]
        optimizer = torch.optim.AdamW(reference, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
        generator = torch.Generator(device=DEVICE).manual_seed(3)
        for step in range(1, 1001):
            g = [torch.randn(s, device=DEVICE, generator=generator) for s in shapes]
            for q, h in zip(reference, g):
                q.grad = h.double()
            optimizer.step()
            adam(p, g, m, v, step=step, lr=1e-3, weight_decay=0.01)
        for q, t, a, b in zip(reference, p, m, v):
            # 1,000 roundings to nearest of numbers of size 1: √1000 · 2^-24 expected, no bias.
            self.assertLess((q.detach() - t.double()).abs().max().item(), 1e-5)
            self.assertLess((q.detach() - t.double()).mean().abs().item(), 1e-7)
            state = optimizer.state[q]
            torch.testing.assert_close(b.double(), state["exp_avg_sq"], rtol=1e-5, atol=0)
            torch.testing.assert_close(a.double(), state["exp_avg"], rtol=1e-4, atol=1e-6)

    @needs_gpu
    def test_Adam_with_L2_agrees_with_torch(self):
        p, _, m, v = tensors(SHAPES)
        reference = [torch.nn.Parameter(t.double()) for t in p]
        optimizer = torch.optim.Adam(reference, lr=0.01, weight_decay=0.1)
        for step in range(1, 11):
            g = [torch.randn(s, device=DEVICE) for s in SHAPES]
            for q, h in zip(reference, g):
                q.grad = h.double()
            optimizer.step()
            adam(p, g, m, v, step=step, lr=0.01, weight_decay=0.1, adamw=False)
        for q, t in zip(reference, p):
            torch.testing.assert_close(t.double(), q.detach(), rtol=1e-5, atol=1e-6)

    @needs_gpu
    def test_the_copy_is_the_new_parameter(self):
        p, g, m, v = tensors(SHAPES)
        for dtype in (F16, BF16):
            copies = [torch.full_like(t, float("nan"), dtype=dtype) for t in p]
            ds.fused_adam_step(p, g, m, v, copies, step=1)
            for t, c in zip(p, copies):
                self.assertTrue(torch.equal(t.to(dtype), c))


class Lists(unittest.TestCase):
    @needs_gpu
    def test_ten_thousand_tensors_are_as_each_by_itself(self):
        sizes = [(int(n),) for n in torch.randint(0, 700, (10000,))]
        for step, name in STEPS:
            p, g, m, v = tensors(sizes)
            want = clones(p, g, m, v)
            step(p, g, m, v)
            for i in range(0, 10000, 97):
                step(*[[t[i]] for t in want])
                for got, one in zip((p, m, v), (want[0], want[2], want[3])):
                    self.assertTrue(torch.equal(got[i], one[i]), f"{name} {i}")

    @needs_gpu
    def test_more_than_2_to_the_31_elements(self):
        size = 2**31 + 4099
        if torch.cuda.mem_get_info()[0] < 12 * size:
            self.skipTest("the GPU has too little memory")
        for step, name in STEPS:
            p = torch.empty(size, dtype=BF16, device=DEVICE).normal_()
            g = torch.empty(size, dtype=BF16, device=DEVICE).normal_()
            m, v = torch.zeros_like(p), torch.zeros_like(p)
            # The ends and the places where 31 and 32 bits of bytes or elements wrap.
            places = [0, 2**30 - 2048, 2**31 - 2048, size - 4096]
            before = [(p[a:a + 4096].clone(), g[a:a + 4096].clone()) for a in places]
            ratio = torch.zeros(1, device=DEVICE)
            extra = {"trust_ratios": ratio} if name == "lamb" else {}
            step([p], [g], [m], [v], lr=0.5, **extra)
            for a, (old, h) in zip(places, before):
                h = h.double()
                if name == "lion":
                    change = h.sign()
                else:
                    m_ = (0.1 * h).to(BF16).double()
                    v_ = (0.001 * h * h).to(BF16).double()
                    if name == "adam":
                        m_, v_ = 0.1 * h, 0.001 * h * h
                    change = (m_ / 0.1) / ((v_ / 0.001).sqrt() + 1e-8)
                    if name == "lamb":
                        change = change * ratio.double()
                want = old.double() - 0.5 * change
                torch.testing.assert_close(p[a:a + 4096].double(), want, rtol=8e-3, atol=8e-3)
            del p, g, m, v, before
            torch.cuda.empty_cache()

    @needs_gpu
    def test_an_empty_list_is_no_work(self):
        for step, _ in STEPS:
            step([], [], [], [])
            p, g, m, v = tensors([(0,), (0, 4)])
            step(p, g, m, v)
        torch.cuda.synchronize()


class StreamsAndGraphs(unittest.TestCase):
    @needs_gpu
    def test_the_current_stream_is_used(self):
        for step, name in STEPS:
            p, g, m, v = tensors([(1 << 20,)])
            want = clones(p, g, m, v)
            step(*want)
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                late = torch.zeros_like(g[0])
                torch.cuda._sleep(50_000_000)
                late.copy_(g[0])  # On the default stream the step would see zeros.
                step(p, [late], m, v)
            stream.synchronize()
            self.assertTrue(torch.equal(p[0], want[0][0]), name)

    @needs_gpu
    def test_a_graph_replays_steps_that_count_themselves_and_skip_infinities(self):
        for step, name in STEPS:
            p, _, m, v = tensors([(5000,), (33,), (300000,)])
            q, r, s = clones(p, m, v)
            g = [torch.zeros_like(t) for t in p]
            count = torch.zeros((), dtype=torch.int64, device=DEVICE)
            lr, scale = (torch.zeros((), device=DEVICE) for _ in range(2))
            found, norm = (torch.zeros((), device=DEVICE) for _ in range(2))
            numbers = dict(step_on_device=count, lr_on_device=lr, grad_scale_on_device=scale,
                           found_inf=found, grad_norm=norm, max_norm=1.0)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(p, g, m, v, **numbers)
            done = 0
            for i in range(1, 9):
                torch.manual_seed(i)
                for t in g:
                    t.copy_(4 * torch.randn_like(t))
                lr.fill_(0.1 / i)
                scale.fill_(4.0)
                found.fill_(float(i % 3 == 0))
                norm.fill_(4.0 * i)  # Clipped from the second step on.
                graph.replay()
                if i % 3 == 0:
                    continue
                done += 1
                multiplier = min(1.0, 1.0 / (i + 1e-6))
                step(q, g, r, s, step=done, lr=lr.item(),
                     grad_scale=4.0 / multiplier)
            self.assertEqual(count.item(), done)
            for got, want in zip(p + m, q + r):
                torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6, msg=name)

    @needs_gpu
    def test_two_graphs_of_one_list_do_not_disturb_each_other(self):
        for step, name in STEPS:
            p, g, m, v = tensors([(100000,), (77,)])
            q = clones(p, g, m, v)
            graphs = []
            for _ in range(2):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step(p, g, m, v, lr=0.01)
                graphs.append(graph)
            graphs[0].replay()
            del graphs[0]  # Its list goes with it; the other's stays.
            step(*tensors([(10,)]))
            graphs[0].replay()
            step(p, g, m, v, lr=0.01)
            for _ in range(3):
                step(*q, lr=0.01)
            for a, b in zip(p, q[0]):
                self.assertTrue(torch.equal(a, b), name)

    @needs_gpu
    def test_torch_compile_sees_what_is_mutated(self):
        for step, name in STEPS:
            def train(p, g, m, v):
                g = [t * 2 for t in g]
                step(p, g, m, v)
                return [t + 1 for t in p]
            p, g, m, v = tensors([(64, 3), (100,)])
            q = clones(p, g, m, v)
            want = train(*q)
            got = torch.compile(train, fullgraph=True)(p, g, m, v)
            for a, b in zip(got + p + m, want + q[0] + q[2]):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=name)

    @needs_gpu
    def test_the_version_of_what_is_written_goes_up(self):
        p, g, m, v = tensors([(4,)])
        p[0].requires_grad_(True)
        loss = (p[0] * p[0]).sum()
        with torch.no_grad():
            adam(p, g, m, v)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()


class Errors(unittest.TestCase):
    def test_meta_tensors_are_checked_alike(self):
        p, g, m, v = tensors([(4, 6)], device="meta")
        for step, _ in STEPS:
            step(p, g, m, v)
            with self.assertRaisesRegex(RuntimeError, r"grads\[0\] has another shape"):
                step(p, [g[0][:2]], m, v)

    @needs_gpu
    def test_one_call_is_for_one_device(self):
        lists = tensors([(4,)]), tensors([(4,)], device="cpu")
        for step, _ in STEPS:
            with self.assertRaisesRegex(RuntimeError, "one call is for one device"):
                step(*[a + b for a, b in zip(*lists)])

    @needs_gpu
    def test_a_slice_with_gaps_is_refused_by_index_shape_and_strides(self):
        p, g, m, v = tensors([(4, 6)])
        before = p[0].clone()
        halves = [[t[0][:, ::2]] for t in (p, g, m, v)]
        for step, _ in STEPS:
            with self.assertRaisesRegex(
                    RuntimeError, r"params\[0\] is not contiguous in memory.*\[4, 3\].*\[6, 2\]"):
                step(*halves)
        self.assertTrue(torch.equal(p[0], before))

    @needs_gpu
    def test_a_gradient_in_another_order_of_memory_is_read_in_the_right_one(self):
        for step, _ in STEPS:
            p, g, m, v = tensors([(5, 3)])
            want = clones(p, g, m, v)
            step(*want)
            step(p, [g[0].t().contiguous().t()], m, v)
            self.assertTrue(torch.equal(p[0], want[0][0]))

    @needs_gpu
    def test_wrong_numbers_on_the_device_are_refused(self):
        p, g, m, v = tensors([(4,)])
        with self.assertRaisesRegex(RuntimeError, "lr_on_device must be one element of Float"):
            adam(p, g, m, v, lr_on_device=torch.zeros(2, device=DEVICE))
        with self.assertRaisesRegex(RuntimeError, "step_on_device is on cpu"):
            adam(p, g, m, v, step_on_device=torch.zeros((), dtype=torch.int64))
        with self.assertRaisesRegex(ValueError, "max_norm needs the gradients' norm"):
            adam(p, g, m, v, max_norm=1.0)
        with self.assertRaisesRegex(RuntimeError, "trust_ratios must be 1 contiguous"):
            lamb(p, g, m, v, trust_ratios=torch.zeros(2, device=DEVICE))

    @unittest.skipUnless(HAVE and torch.cuda.device_count() > 1, "needs two CUDA devices")
    def test_a_list_on_another_than_the_current_device_is_updated_there(self):
        for step, _ in STEPS:
            p, g, m, v = tensors([(4097,)], device="cuda:1")
            q = tensors([(4097,)], device="cuda:0")
            with torch.cuda.device(0):
                step(p, g, m, v)
            step(*q)
            self.assertTrue(torch.equal(p[0].cpu(), q[0][0].cpu()))
        with self.assertRaisesRegex(RuntimeError, "one call is for one device"):
            adam(*[[a[0], b[0]] for a, b in zip(q, (p, g, m, v))])


if __name__ == "__main__":
    unittest.main()
