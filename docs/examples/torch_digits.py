"""A small network in PyTorch, trained by DistributedDataParallel on all workers of a run, each on its own rows.

ignite-tf start --workers 2 DIGITS . python torch_digits.py
"""

import os

import torch
import torch.distributed as dist

import ignite_tf_magic as itf

dist.init_process_group("gloo")  # "nccl" on GPUs; a run's workers know each other
num_workers = dist.get_world_size()
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loss_of = torch.nn.CrossEntropyLoss(reduction="sum")

rows = itf.batches("DIGITS", 256, shuffle=2000, seed=1)
for epoch in range(5):
    total = torch.zeros(1)
    for batch in rows:
        pixels = torch.from_dlpack(batch["val"]["pixels"]).float() / 16
        loss = loss_of(model(pixels), torch.from_dlpack(batch["val"]["label"]).long())
        num_rows = torch.tensor([float(len(pixels))])
        dist.all_reduce(num_rows)
        optimizer.zero_grad()
        # DDP takes the mean over workers: this makes it that over rows.
        (loss * num_workers / num_rows).backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(
            f"epoch {epoch}: loss {total.item() / 1797:.6f} with {os.environ['WORLD_SIZE']} workers",
            flush=True,
        )

itf.result({name: value.detach().numpy() for name, value in network.named_parameters()})
