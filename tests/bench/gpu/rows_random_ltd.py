"""Token dropping at the sizes of a large language model, and of its masks."""

import torch

from bench import deepspeed, row, sets_for

ds = torch.ops.ds
N, S, R, C = 64, 4096, 2048, 2048


def sample(rows, kept, tokens, ordered=True):
    """Distinct ids, `rows` of them."""
    picked = torch.rand(rows, tokens, device="cuda").argsort(dim=1)[:, :kept]
    return (picked.sort(dim=1).values if ordered else picked).int().contiguous()


def of_inputs(make_one, bytes_each, call):
    """A make(): calls on several input sets."""
    def make():
        return [lambda a=make_one(): call(*a) for _ in range(sets_for(bytes_each, 2))]
    return make


def rows_of(name, batch_first, dtype):
    size = N * R * C * torch.empty((), dtype=dtype).element_size()
    dim = 1 if batch_first else 0

    def one():
        x = torch.randn((N, S, C) if batch_first else (S, N, C), device="cuda").to(dtype)
        idx = sample(N, R, S)
        layer = torch.randn((N, R, C) if batch_first else (R, N, C), device="cuda").to(dtype)
        wide = (idx if batch_first else idx.t()).long()[:, :, None].expand(layer.shape)
        return x, layer, idx, wide

    def peer(call):
        return of_inputs(one, size, call)

    layout = "[N, S, C]" if batch_first else "[S, N, C]"
    text = f"{name} {str(dtype)[6:]} {layout}, {N}×{R} of {S}, {C} channels"
    moved = 2 * size + N * R * 4
    if name == "token_gather":
        row(text, "random_ltd", moved, peer(lambda x, _, i, __: ds.token_gather(x, i, batch_first)),
            {"torch": peer(lambda x, _, __, w: x.gather(dim, w)),
             "compiled": lambda: peer(torch.compile(lambda x, _, __, w: x.gather(dim, w)))(),
             "deepspeed": lambda: peer(
                 lambda x, _, i, __, m=deepspeed("random_ltd"): m.token_gather(x, i, batch_first))()})
    else:
        row(text, "random_ltd", moved,
            peer(lambda x, y, i, _: ds.token_scatter_(x, y, i, batch_first)),
            {"torch": peer(lambda x, y, _, w: x.scatter_(dim, w, y)),
             "deepspeed": lambda: peer(lambda x, y, i, _, m=deepspeed("random_ltd"):
                                       m.token_scatter_(x, y, i, batch_first))()})


for name_ in ("token_gather", "token_scatter_"):
    for batch_first_ in (True, False):
        rows_of(name_, batch_first_, torch.float16)
    rows_of(name_, True, torch.float32)


def sorting(rows, kept, tokens):
    size = rows * kept * 4

    def one():
        return (sample(rows, kept, tokens, ordered=False),)

    peers = {"torch": of_inputs(one, size, lambda ids: ids.sort(dim=-1))}
    if kept <= 2048 and tokens <= 2048:  # Above that it faults, and takes the process along.
        peers["deepspeed"] = lambda: of_inputs(
            one, size, lambda ids, m=deepspeed("random_ltd"): m.token_sort_(
                ids.view(1, rows, kept), tokens))()
    row(f"token_sort_ {rows} rows of {kept} of {tokens}", "random_ltd", 2 * size,
        of_inputs(one, size, lambda ids: ds.token_sort_(ids, tokens)), peers)


sorting(24 * 8, 1024, 2048)
sorting(24 * 8, 2048, 4096)
sorting(24 * 64, 1024, 2048)
sorting(24 * 64, 32768, 65536)


def masks_of_layers():
    layers, n, s, r = 24, 8, 2048, 1024
    moved = layers * n * r * r * 2

    def one():
        mask = torch.randn(n, 1, s, s, device="cuda").half()
        return mask, sample(layers * n, r, s).view(layers, n, r)

    def plain(mask, idx):
        rows = mask[:, 0].expand(layers, n, s, s).gather(
            2, idx.long()[..., None].expand(layers, n, r, s))
        return rows.gather(3, idx.long()[:, :, None, :].expand(layers, n, r, r))

    # The mask is small enough to stay in the cache over the layers: it counts once.
    row(f"mask_gather_bert f16, {layers} layers, {n}×{r} of {s}", "random_ltd",
        moved + n * s * s * 2, of_inputs(one, moved, lambda m, i: ds.mask_gather_bert(m, i)),
        {"torch": of_inputs(one, moved, plain),
         "deepspeed": lambda: of_inputs(one, moved, deepspeed("random_ltd").mask_gather_bert)()})


def masks_of_first():
    n, s, r = 64, 4096, 2048
    moved = 2 * n * r * r * 2
    make_one = lambda: (torch.randn(n, 1, s, s, device="cuda").half(),)
    row(f"mask_gather_gpt f16, {n}×{r} of {s}", "random_ltd", moved,
        of_inputs(make_one, moved, lambda m: ds.mask_gather_gpt(m, r)),
        {"torch": of_inputs(make_one, moved, lambda m: m[:, :, :r, :r].contiguous()),
         "deepspeed": lambda: of_inputs(
             make_one, moved, lambda m, d=deepspeed("random_ltd"): d.mask_gather_gpt(m, r))()})


masks_of_layers()
masks_of_first()
