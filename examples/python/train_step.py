"""Trains a small model for some steps with the installed ops, and compares with torch's AdamW.

    python3 train_step.py --prefix /opt/ds-ops/current
"""

import argparse
import pathlib
import sys

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=pathlib.Path, default="/opt/ds-ops/current",
                        help="where the ops are installed")
    sys.path.insert(0, str(parser.parse_args().prefix / "python"))
    import ds_ops  # Loads every installed op; `torch.ops.load_library(path)` loads one.

    print("loaded:", ", ".join(ds_ops.capabilities()))

    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    theirs = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(256, 8)
    y = x.sin().sum(dim=1, keepdim=True)

    params = list(ours.parameters())
    exp_avgs = [torch.zeros_like(p) for p in params]
    exp_avg_sqs = [torch.zeros_like(p) for p in params]
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.01)

    for step in range(1, 21):
        for model in (ours, theirs):
            model.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            torch.ops.ds.cpu_adam_step(params, [p.grad for p in params], exp_avgs, exp_avg_sqs,
                                       step=step, lr=0.01, weight_decay=0.01)

    worst = max((p - q).abs().max().item() for p, q in zip(params, theirs.parameters()))
    loss = torch.nn.functional.mse_loss(ours(x), y).item()
    print(f"loss {loss:.4f} after 20 steps, largest difference {worst:.1e}")
    if worst > 1e-4:
        sys.exit("differs from torch.optim.AdamW")
    print("agrees with torch.optim.AdamW")


if __name__ == "__main__":
    main()
