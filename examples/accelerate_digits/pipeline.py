"""Handwritten digits, read by a small network: trained by one process, and by two that share the work.

    upshift run examples/accelerate_digits/pipeline.py --param epochs=30

All see the same batches, and what two processes learn from the halves of a batch is what one learns from the
whole: both networks read digits equally well. Where the machine has GPUs, each process gets one of its own.
"""

from typing import Annotated

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import upshift
from upshift import ResourceSettings, pipeline, run_with_accelerate, step

Weights = dict[str, torch.Tensor]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


# Four outputs: each is an artifact of its own. Processes that train map their images, they do not copy them.
@step
def load() -> tuple[
    Annotated[np.ndarray, "images"],
    Annotated[np.ndarray, "labels"],
    Annotated[np.ndarray, "test_images"],
    Annotated[np.ndarray, "test_labels"],
]:
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x, x_test, y, y_test = train_test_split(images, digits, test_size=0.25, stratify=digits, random_state=0)
    return x, y, x_test, y_test


# The usual loop of Accelerate. It is the same for one process and for many.
@step(settings={"resources": ResourceSettings(cpu_count=1)})
def train(images: np.ndarray, labels: np.ndarray, epochs: int) -> Weights:
    same_batches = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(dataloader_config=same_batches)
    set_seed(0)
    data = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    model, loader = network(), DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(epochs):
        total = torch.zeros((), device=accelerator.device)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total, reduction="mean").item() / len(loader)
        if accelerator.is_main_process:
            upshift.log(step=epoch, loss=mean)

    devices = f"{accelerator.num_processes} x {accelerator.device.type}"
    accelerator.print(f"trained on {devices}: loss {mean:.4f}")
    weights = accelerator.unwrap_model(model).cpu().state_dict()
    accelerator.end_training()
    return dict(weights)  # of the process of rank 0: that is the step's output


together = train.with_options(name="train_together", settings={"resources": ResourceSettings(cpu_count=2)})
on_two_cpus = run_with_accelerate(num_processes=2, cpu=True)(together)
on_two_gpus = run_with_accelerate(num_processes=2, multi_gpu=True)(together)


@step
def accuracy(weights: Weights, images: np.ndarray, labels: np.ndarray) -> float:
    model = network()
    model.load_state_dict(weights)
    with torch.inference_mode():
        answers = model(torch.from_numpy(images)).argmax(dim=1).numpy()
    share = float(np.mean(answers == labels))
    print(f"{share:.2%} of {len(labels)} digits it has never seen")
    return share


@pipeline
def digits(epochs: int = 15, gpus: bool = torch.cuda.device_count() > 0) -> tuple[float, float]:
    images, labels, test_images, test_labels = load()
    one = train(images, labels, epochs)
    two = (on_two_gpus if gpus else on_two_cpus)(images, labels, epochs)
    return accuracy(one, test_images, test_labels), accuracy(two, test_images, test_labels)


if __name__ == "__main__":
    one, two = digits().output
    print(f"one process {one:.2%}, two processes {two:.2%}")
