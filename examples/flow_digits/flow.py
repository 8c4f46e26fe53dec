"""Handwritten digits as a flow: compare classifiers side by side, refine the best until that stops helping.

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn. Run it with either of

    python examples/flow_digits/flow.py run --folds 10
    upshift run examples/flow_digits/flow.py --param folds=10
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

import upshift
from upshift import FlowSpec, JSONType, Parameter, resources, step


class DigitsFlow(FlowSpec):
    """Read handwritten digits."""

    held_out = Parameter("held_out", default=0.25, help="The part of the images that is kept for the end.")
    folds = Parameter("folds", default=5, help="How many parts each model is cross-validated on.")
    trees = Parameter("trees", default=[50, 200], type=JSONType, help="Sizes of the forests to try.")

    @step
    def start(self):
        bunch = load_digits()
        self.images, self.test_images, self.digits, self.test_digits = train_test_split(
            bunch.data, bunch.target, test_size=self.held_out, stratify=bunch.target, random_state=0
        )
        self.models = [
            SVC(C=10, gamma=0.002),
            KNeighborsClassifier(n_neighbors=3),
            *(RandomForestClassifier(n_estimators=trees, random_state=0) for trees in self.trees),
        ]
        self.next(self.score, foreach="models")

    # What a step asks for is what it gets: here one CPU, and 500 MB that it must not exceed.
    @resources(cpu=1, memory=500)
    @step
    def score(self):
        self.model = self.input
        self.accuracy = cross_validated(self.model, self.images, self.digits, self.folds)
        print(f"{self.accuracy:.4f}  {self.model}")
        upshift.log(accuracy=self.accuracy)
        self.next(self.choose)

    @step
    def choose(self, inputs):
        best = max(inputs, key=lambda one: one.accuracy)
        self.model, self.accuracy = best.model, best.accuracy
        self.scores = {str(one.model): one.accuracy for one in inputs}
        # All branches have the same images; their models and scores differ.
        self.merge_artifacts(inputs, include=["images", "digits", "test_images", "test_digits"])
        self.kind = "support vectors" if isinstance(self.model, SVC) else "other"
        self.next({"support vectors": self.refine, "other": self.fit}, condition="kind")

    # A step that may go back to itself is a loop.
    @resources(cpu=1, memory=500)
    @step
    def refine(self):
        model = SVC(C=self.model.C, gamma=self.model.gamma / 2)
        accuracy = cross_validated(model, self.images, self.digits, self.folds)
        self.better = accuracy > self.accuracy
        if self.better:
            self.model, self.accuracy = model, accuracy
        print(f"{accuracy:.4f}  gamma={model.gamma:g}{', better' if self.better else ''}")
        self.next({True: self.refine, False: self.fit}, condition="better")

    @resources(cpu=1, memory=500)
    @step
    def fit(self):
        self.model.fit(self.images, self.digits)
        self.next(self.end)

    @step
    def end(self):
        self.accuracy = float(self.model.score(self.test_images, self.test_digits))
        print(f"{self.model} reads {self.accuracy:.2%} of {len(self.test_digits)} digits it has never seen")


def cross_validated(model, images, digits, folds):
    """The mean accuracy of a model."""
    return float(np.mean(cross_val_score(model, images, digits, cv=folds)))


if __name__ == "__main__":
    DigitsFlow()
