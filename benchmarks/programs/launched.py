"""A training as a script for ``accelerate launch``. Its main process prints what it found, as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch
from accelerate import Accelerator

WIDTH, BATCH = 512, 256


def train(batches: int) -> float:
    called = time.time()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    torch.manual_seed(accelerator.process_index)
    images, classes = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    began = time.time()
    for _ in range(batches):
        loss = torch.nn.functional.cross_entropy(model(images), classes)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    found = {
        "called": called,
        "trained": time.time() - began,
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "loss": accelerator.reduce(loss.detach(), "mean").item(),
    }
    accelerator.print(json.dumps(found))
    return float(found["loss"])


if __name__ == "__main__":
    train(int(sys.argv[1]))
