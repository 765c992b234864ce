"""Tensors as they come: of random shapes, transposed, sliced, expanded, with gaps and offsets.

An op called with such views gives, bit by bit, what it gives for tight copies of them, and writes
what it writes for those; or it refuses them with an error that names the argument, and nothing is
changed. DS_SEED repeats a run.
"""

import os
import random
import unittest

import torch

from ranks import load_op

ds = torch.ops.ds
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ROUNDS = 40
SEED = int(os.environ.get("DS_SEED", random.SystemRandom().randrange(1 << 31)))


def spread(rng, tensor):
    """A view with the same shape and values that lies in memory in some other way."""
    dims = list(range(tensor.dim()))
    rng.shuffle(dims)
    steps = [rng.choice((1, 1, 2, 3)) for _ in dims]
    before = [rng.choice((0, 0, 1)) for _ in dims]
    shape = [before[d] + max(tensor.shape[d] * steps[d], 1) + rng.choice((0, 1)) for d in dims]
    filler = torch.full((), 77).to(tensor.dtype)
    memory = filler.expand(shape).clone() if shape else filler.clone()
    view = memory.permute([dims.index(d) for d in range(len(dims))])
    for d in range(len(dims)):
        view = view.narrow(d, before[d], tensor.shape[d] * steps[d])[
            tuple([slice(None)] * d + [slice(None, None, steps[d])])]
    assert view.shape == tensor.shape
    view.copy_(tensor)
    return view


def expanded(rng, tensor):
    """One that repeats along a dimension, which has no memory of its own; only to be read."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    d = rng.randrange(tensor.dim())
    return tensor.narrow(d, 0, 1).expand(tensor.shape)


def normal(rng, *shape, dtype=F32):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 31))
    return (torch.randn(shape, generator=generator) * 3).to(dtype)


def shape_of(rng, elements, dims=3):
    """A shape of at most `dims` dimensions with so many elements."""
    shape = [elements]
    while len(shape) < dims and rng.random() < 0.7:
        i = rng.randrange(len(shape))
        divisors = [k for k in range(1, shape[i] + 1) if shape[i] % k == 0] or [1]
        k = rng.choice(divisors)
        shape[i:i + 1] = [k, shape[i] // k] if shape[i] else [0, 3]
    return shape


def listed(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in listed(v)] if isinstance(value, (list, tuple)) else []


# --- The ops. Each gives the named tensors, which of them are written, and how to call with them.

def quantize(rng):
    groups, size = rng.randint(1, 5), rng.choice((2, 8, 32, 100))
    bits, symmetric = rng.choice((4, 8)), rng.random() < 0.5
    *first, last = shape_of(rng, groups * size // 2)
    values = normal(rng, *first, 2 * last, dtype=rng.choice((F32, F16, BF16)))
    return {"input": values}, (), lambda t: ds.quantize(t["input"], groups, bits, symmetric)


def dequantize(rng):
    groups, size = rng.randint(1, 5), rng.choice((2, 8, 32, 100))
    bits, symmetric = rng.choice((4, 8)), rng.random() < 0.5
    codes, params = ds.quantize(normal(rng, groups * size), groups, bits, symmetric)
    return ({"codes": codes, "params": params}, (),
            lambda t: ds.dequantize(t["codes"], t["params"], groups, bits, symmetric, dtype=F16))


def fake_quantize(rng):
    groups, size = rng.randint(1, 5), rng.choice((2, 8, 32, 100))
    values = normal(rng, *shape_of(rng, groups * size), dtype=rng.choice((F32, F16, BF16)))
    options = dict(bits=rng.choice((4, 8)), symmetric=rng.random() < 0.5,
                   stochastic=rng.random() < 0.5, seed=7)
    return ({"values": values}, ("values",),
            lambda t: ds.fake_quantize_(t["values"], groups, **options))


def swizzle_quant(rng):
    nodes, devices, pipeline = rng.choice((1, 2)), rng.choice((1, 2, 4)), rng.choice((1, 2))
    groups, size = nodes * devices * pipeline * rng.randint(1, 3), rng.choice((8, 32))
    bits = rng.choice((4, 8))
    *first, last = shape_of(rng, groups * size // 2)
    values = normal(rng, *first, 2 * last, dtype=F16)
    return ({"input": values}, (),
            lambda t: ds.swizzle_quant(t["input"], groups, bits, True, pipeline, nodes, devices))


def loco_swizzle_quant(rng):
    groups, size = 2 * rng.randint(1, 3), rng.choice((8, 32))
    values = normal(rng, groups * size, dtype=F16)
    error = normal(rng, groups * size, dtype=F16) * 0.01
    return ({"input": values, "error_feedback": error}, ("error_feedback",),
            lambda t: ds.loco_swizzle_quant(t["input"], t["error_feedback"], 0.8, groups, 8, True,
                                            1, 1, 2))


def quantized_reduction(rng):
    devices, groups, size = rng.choice((1, 2, 4)), rng.randint(1, 3), 32
    bits = rng.choice((4, 8))
    codes, params = ds.quantize(normal(rng, devices * groups * size, dtype=F16), devices * groups,
                                bits, True)
    return ({"codes": codes, "params": params}, (),
            lambda t: ds.quantized_reduction(t["codes"], t["params"], devices * groups, groups,
                                             bits, True, devices))


def fp_quantize(rng):
    groups, size = rng.randint(1, 5), rng.choice((64, 128))
    bits, mantissa = rng.choice(((8, 3), (6, 2), (4, 1), (12, 7)))
    values = normal(rng, *shape_of(rng, groups * size), dtype=rng.choice((F32, F16, BF16)))
    return ({"input": values}, (),
            lambda t: ds.fp_quantize(t["input"], size, bits, mantissa))


def fp_dequantize(rng):
    groups, size = rng.randint(1, 5), rng.choice((64, 128))
    bits, mantissa = rng.choice(((8, 3), (6, 2), (4, 1), (12, 7)))
    values = normal(rng, groups * size, dtype=BF16)
    rows = ds.fp_quantize(values, size, bits, mantissa)
    return ({"rows": rows, "output": torch.zeros_like(values)}, ("output",),
            lambda t: ds.fp_dequantize_(t["rows"], t["output"], size, bits, mantissa))


def token_sort(rng):
    tokens = rng.randint(1, 50)
    layers, kept = rng.randint(1, 4), rng.randint(1, tokens)
    ids = torch.stack([torch.tensor(rng.sample(range(tokens), kept), dtype=torch.int32)
                       for _ in range(layers)])
    return {"ids": ids}, ("ids",), lambda t: ds.token_sort_(t["ids"], tokens)


def chosen_tokens(rng):
    batch, tokens, width = rng.randint(1, 3), rng.randint(1, 20), rng.choice((1, 3, 8, 33))
    kept, first = rng.randint(1, tokens), rng.random() < 0.5
    dtype = rng.choice((F32, F16, BF16))
    indices = torch.stack([torch.tensor(sorted(rng.sample(range(tokens), kept)), dtype=torch.int32)
                           for _ in range(batch)])
    whole = (batch, tokens, width) if first else (tokens, batch, width)
    part = (batch, kept, width) if first else (kept, batch, width)
    return normal(rng, *whole, dtype=dtype), normal(rng, *part, dtype=dtype), indices, first


def token_gather(rng):
    whole, _, indices, first = chosen_tokens(rng)
    return ({"activations": whole, "indices": indices}, (),
            lambda t: ds.token_gather(t["activations"], t["indices"], first))


def token_scatter(rng):
    whole, part, indices, first = chosen_tokens(rng)
    return ({"all_activations": whole, "layer_activations": part, "indices": indices},
            ("all_activations",),
            lambda t: ds.token_scatter_(t["all_activations"], t["layer_activations"], t["indices"],
                                        first))


def nhwc_bias(rng):
    shape = [rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 5), rng.randint(1, 5)]
    dtype = rng.choice((F32, F16, BF16))
    make = lambda: normal(rng, *shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
    tensors = {"input": make(), "bias": normal(rng, shape[1], dtype=dtype), "other": make(),
               "other_bias": normal(rng, shape[1], dtype=dtype)}
    return (tensors, (), lambda t: [
        ds.nhwc_bias_add(t["input"], t["bias"]),
        ds.nhwc_bias_add_add(t["input"], t["bias"], t["other"]),
        ds.nhwc_bias_add_bias_add(t["input"], t["bias"], t["other"], t["other_bias"])])


def flatten(rng):
    dtype = rng.choice((F32, F16, BF16))
    tensors = {f"tensors_{i}": normal(rng, *shape_of(rng, rng.choice((0, 1, 7, 60))), dtype=dtype)
               for i in range(3)}
    return tensors, (), lambda t: ds.flatten(list(t.values()))


def optimizer(op, states, mixed_names, **numbers):
    def make(rng):
        shape = shape_of(rng, rng.choice((0, 1, 60, 1009)))
        dtype = rng.choice((F32, F16, BF16))
        tensors = {"params": normal(rng, *shape, dtype=dtype),
                   "grads": normal(rng, *shape, dtype=dtype)}
        for name in states:
            tensors[name] = normal(rng, *shape).abs().to(dtype)
        written = ("params", *states)
        function = getattr(ds, op).default
        return (tensors, written,
                lambda t: function(*([x] for x in t.values()), *mixed_names, **numbers))
    return make


# What is updated in place, or promises a layout, is refused however little is amiss.
ALWAYS_REFUSED = (fake_quantize, token_sort, nhwc_bias)

CASES = {
    "quantizer": (quantize, dequantize, fake_quantize, swizzle_quant, loco_swizzle_quant,
                  quantized_reduction),
    "fp_quantizer": (fp_quantize, fp_dequantize),
    "random_ltd": (token_sort, token_gather, token_scatter),
    "spatial_inference": (nhwc_bias,),
    "utils": (flatten,),
    "cpu_adam": (optimizer("cpu_adam_step", ("exp_avgs", "exp_avg_sqs"), (), step=2, lr=0.1),),
    "cpu_adagrad": (optimizer("cpu_adagrad_step", ("exp_avg_sqs",), (), lr=0.1),),
    "cpu_lion": (optimizer("cpu_lion_step", ("exp_avgs",), (), lr=0.1),),
    "fused_adam": (optimizer("fused_adam_step", ("exp_avgs", "exp_avg_sqs"), ([],), step=2,
                             lr=0.1),),
    "fused_lion": (optimizer("fused_lion_step", ("exp_avgs",), ([],), lr=0.1),),
}


class Strides(unittest.TestCase):
    def check(self, make, seed):
        rng = random.Random(seed)
        tight, written, call = make(rng)
        given = {}
        # One alone or several, so that each is met as the only one that is amiss.
        turned = rng.sample(list(tight), rng.choice((1, rng.randint(1, len(tight)))))
        for name, tensor in tight.items():
            if name not in turned:
                given[name] = tensor.clone()  # Keeps its order of memory.
            elif rng.random() < 0.3 and name not in written:
                given[name] = expanded(rng, tensor)
                tight[name] = given[name].clone(memory_format=torch.contiguous_format)
                if tensor.dim() == 4:
                    tight[name] = tight[name].contiguous(memory_format=torch.channels_last)
            else:
                given[name] = spread(rng, tensor)
        before = {name: tensor.clone() for name, tensor in given.items()}
        try:
            wanted = listed(call(tight))
        except RuntimeError as error:  # Wrong for another reason than how it lies in memory.
            self.fail(f"tight copies are refused: {error}")
        try:
            got = listed(call(given))
        except RuntimeError as error:
            self.assertTrue(any(name.rstrip("_0123456789") in str(error) for name in given),
                            f"names none of {list(given)}: {error}")
            for name, tensor in given.items():
                self.assertTrue(torch.equal(tensor, before[name]), f"{name} was changed: {error}")
            return False
        self.assertEqual(len(got), len(wanted))
        for a, b in zip(got, wanted):
            self.assertTrue(torch.equal(a, b), "a result differs")
        for name, tensor in given.items():
            self.assertTrue(torch.equal(tensor, tight[name]),
                            f"{name} {'has other values' if name in written else 'was written'}")
        return not all(t.is_contiguous() for t in given.values())


def of_op(op):
    def test(self):
        if not load_op(op):
            self.skipTest("the op is not built")
        for make in CASES[op]:
            computed = 0
            for i in range(ROUNDS):
                seed = SEED + i
                with self.subTest(case=make.__name__, DS_SEED=seed):
                    computed += self.check(make, seed)
            if make not in ALWAYS_REFUSED:  # Otherwise nothing was compared.
                self.assertGreater(computed, 0, make.__name__)
    return test


for name in CASES:
    setattr(Strides, f"test_{name}", of_op(name))

if __name__ == "__main__":
    unittest.main()
