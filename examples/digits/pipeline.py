"""Handwritten digits: compare several classifiers side by side, keep the best, say how good it is.

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn. Run it with either of

    upshift run examples/digits/pipeline.py --param folds=10
    python examples/digits/pipeline.py
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from upshift import ResourceSettings, pipeline, step, unmapped


@dataclass
class Dataset:
    """Images, one a row of 64 pixels, and the digit that each of them shows."""

    images: np.ndarray
    digits: np.ndarray


@step
def load() -> Dataset:
    bunch = load_digits()
    return Dataset(images=bunch.data, digits=bunch.target)


# Two outputs: each is an artifact of its own, stored once and loaded only by the steps that need it.
@step
def split(data: Dataset, held_out: float) -> tuple[Annotated[Dataset, "train"], Annotated[Dataset, "test"]]:
    images, test_images, digits, test_digits = train_test_split(
        data.images, data.digits, test_size=held_out, stratify=data.digits, random_state=0
    )
    return Dataset(images, digits), Dataset(test_images, test_digits)


# What a step asks for is what it gets: here one CPU, and 500 MB that it must not exceed.
@step(settings={"resources": ResourceSettings(cpu_count=1, memory="500MB")})
def score(model: ClassifierMixin, train: Dataset, folds: int) -> float:
    mean = float(np.mean(cross_val_score(model, train.images, train.digits, cv=folds)))
    print(f"{mean:.4f}  {model}")
    return mean


@step
def choose(models: list[ClassifierMixin], scores: list[float]) -> ClassifierMixin:
    return models[int(np.argmax(scores))]


@step(settings={"resources": ResourceSettings(cpu_count=1, memory="500MB")})
def fit(model: ClassifierMixin, train: Dataset) -> ClassifierMixin:
    return model.fit(train.images, train.digits)


@step(settings={"resources": ResourceSettings(cpu_count=1, memory="500MB")})
def evaluate(model: ClassifierMixin, test: Dataset) -> float:
    accuracy = float(model.score(test.images, test.digits))
    print(f"{model} reads {accuracy:.2%} of {len(test.digits)} digits it has never seen")
    return accuracy


@pipeline
def digits(held_out: float = 0.25, folds: int = 5) -> float:
    # Inside a pipeline a call to a step computes nothing yet: it says what needs what.
    train, test = split(load(), held_out)
    models = [
        *(SVC(C=c, gamma=gamma) for c in (1, 10) for gamma in (0.0005, 0.001, 0.005)),
        *(RandomForestClassifier(n_estimators=trees, random_state=0) for trees in (50, 200)),
        KNeighborsClassifier(n_neighbors=3),
    ]
    scores = score.map(model=models, train=unmapped(train), folds=folds)  # one task a model, in parallel
    best = fit(choose(models, scores), train)
    return evaluate(best, test)


if __name__ == "__main__":
    run = digits()
    print(f"run {run.id}: accuracy {run.output:.4f} with {run['fit'].output}")
