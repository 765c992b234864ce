"""torch.ops.ds.flatten, unflatten and byte_view, and the module with DeepSpeed's names."""

import importlib.util
import os
import pathlib
import unittest

import torch

LIBRARY = os.environ["DS_OPS_BINARY_DIR"] + "/ds_utils/libds_utils.so"
BUILT = os.path.exists(LIBRARY)
if BUILT:
    torch.ops.load_library(LIBRARY)
ds = torch.ops.ds


def module(name):
    folder = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


SHAPES = [(), (0,), (3, 5), (1,), (2, 0, 4), (70_001,), (7, 1, 3), (400, 900)]


@unittest.skipUnless(BUILT, "the op is not built")
class Utils(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def tensors(self, dtype):
        return [(torch.randn(shape) * 100).to(dtype) for shape in SHAPES]

    def test_flatten_is_the_concatenation_in_every_dtype(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64,
                      torch.uint8, torch.bool, torch.complex64):
            tensors = self.tensors(dtype)
            flat = ds.flatten(tensors)
            self.assertEqual(flat.dtype, dtype)
            self.assertTrue(torch.equal(flat, torch.cat([t.reshape(-1) for t in tensors])))

    def test_flatten_takes_what_is_not_contiguous(self):
        x = torch.randn(30, 40)
        tensors = [x.t(), x[::2, 1:], x[:, 3], torch.randn(4, dtype=torch.complex64).conj()]
        self.assertTrue(torch.equal(ds.flatten(tensors[:3]),
                                    torch.cat([t.reshape(-1) for t in tensors[:3]])))
        self.assertTrue(torch.equal(ds.flatten(tensors[3:]), tensors[3].resolve_conj()))

    def test_unflatten_gives_views_in_the_shapes(self):
        tensors = self.tensors(torch.float32)
        flat = ds.flatten(tensors)
        views = ds.unflatten(flat, tensors)
        for view, tensor in zip(views, tensors):
            self.assertTrue(torch.equal(view, tensor))
        views[2].fill_(7)
        self.assertEqual(flat[1].item(), 7)
        self.assertEqual(len(views), len(tensors))

    def test_flatten_passes_gradients_on(self):
        a, b = torch.randn(3, requires_grad=True), torch.randn(2, 2, requires_grad=True)
        (ds.flatten([a, b]) * torch.arange(7.0)).sum().backward()
        self.assertTrue(torch.equal(a.grad, torch.arange(3.0)))
        self.assertTrue(torch.equal(b.grad, torch.arange(3.0, 7.0).view(2, 2)))

    def test_flatten_of_fake_and_meta_tensors_has_the_shape(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        def check(device, **options):
            tensors = [torch.empty(shape, device=device, **options) for shape in SHAPES]
            flat = ds.flatten(tensors)
            self.assertEqual(flat.numel(), sum(t.numel() for t in tensors))
            self.assertEqual((flat.dtype, flat.device.type), (tensors[0].dtype, device))
            self.assertEqual(flat.requires_grad, tensors[0].requires_grad)
            for view, tensor in zip(ds.unflatten(flat, tensors), tensors):
                self.assertEqual(view.shape, tensor.shape)
            self.assertEqual(ds.byte_view(flat).numel(), flat.numel() * flat.element_size())

        for options in ({}, {"dtype": torch.int64}, {"requires_grad": True}):
            check("meta", **options)
            with FakeTensorMode():
                check("cpu", **options)

    def test_a_graph_of_flatten_flattens_what_it_is_given(self):
        from torch.fx.experimental.proxy_tensor import make_fx
        tensors = self.tensors(torch.float32)
        graph = make_fx(lambda *ts: ds.flatten(list(ts)))(*tensors)
        others = [t + 1 for t in tensors]
        self.assertTrue(torch.equal(graph(*others), ds.flatten(others)))

    def test_byte_view_is_the_memory_itself(self):
        x = torch.randn(5, 3)
        raw = ds.byte_view(x)
        self.assertEqual(raw.dtype, torch.uint8)
        self.assertEqual(raw.shape, (60,))
        self.assertEqual(bytes(raw.numpy()), x.numpy().tobytes())
        raw.zero_()
        self.assertEqual(x.abs().sum().item(), 0)
        self.assertEqual(ds.byte_view(torch.tensor(1.0)).shape, (4,))
        self.assertEqual(ds.byte_view(torch.empty(0)).shape, (0,))

    def test_what_cannot_be_done_is_an_error_that_says_why(self):
        x = torch.randn(4, 4)
        for text, call in (("the list is empty", lambda: ds.flatten([])),
                           ("is Double and", lambda: ds.flatten([x, x.double()])),
                           ("have|has 3 elements", lambda: ds.unflatten(torch.ones(3), [x])),
                           ("one dimension", lambda: ds.unflatten(x, [x])),
                           ("not its values in order", lambda: ds.byte_view(x.t()))):
            with self.assertRaisesRegex(RuntimeError, text):
                call()

    def test_the_module_has_the_names_of_DeepSpeed(self):
        utils = module("utils")
        tensors = self.tensors(torch.float16)
        flat = utils.flatten(tensors)
        for view, tensor in zip(utils.unflatten(flat, tensors), tensors):
            self.assertTrue(torch.equal(view, tensor))
        self.assertEqual(utils.cast_to_byte_tensor(tensors[2]).shape, (30,))
        self.assertEqual([t.numel() for t in utils.cast_to_byte_tensor(tensors[2:4])], [30, 2])


if __name__ == "__main__":
    unittest.main()
