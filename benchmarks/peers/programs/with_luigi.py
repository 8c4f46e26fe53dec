"""Luigi: tasks in this process, one after the other; each writes the file that says that it is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import common
import luigi
import numpy as np


class Increment(luigi.Task):
    start = luigi.IntParameter()
    number = luigi.IntParameter()

    def requires(self):
        return Increment(self.start, self.number - 1) if self.number > 1 else []

    def output(self):
        return luigi.LocalTarget(f"{self.start}-{self.number}")

    def run(self):
        value = int(Path(self.input().path).read_text()) if self.number > 1 else self.start
        with self.output().open("w") as file:
            file.write(str(value + 1))


class Numbers(luigi.WrapperTask):
    start = luigi.IntParameter()
    tasks = luigi.IntParameter()

    def requires(self):
        return [Increment(self.start + number, 1) for number in range(self.tasks)]


class Produce(luigi.Task):
    size = luigi.IntParameter()

    def output(self):
        return luigi.LocalTarget("array.npy")

    def run(self):
        array = common.produce(self.size)
        with self.output().temporary_path() as path, open(path, "wb") as file:
            np.save(file, array)


class Consume(luigi.Task):
    size = luigi.IntParameter()

    def requires(self):
        return Produce(self.size)

    def output(self):
        return luigi.LocalTarget("consumed")

    def run(self):
        common.consume(np.load(self.input().path))
        with self.output().open("w") as file:
            file.write("done")


def run_chain(length: int, start: int) -> Callable[[], int]:
    task = Increment(start, length)
    assert luigi.build([task], local_scheduler=True)
    return lambda: int(Path(task.output().path).read_text())


def run_fan_out(tasks: int, start: int) -> Callable[[], int]:
    task = Numbers(start, tasks)
    assert luigi.build([task], local_scheduler=True)
    return lambda: sum(int(Path(target.path).read_text()) for target in task.input())


def array(size: int) -> dict[str, float]:
    assert luigi.build([Consume(size)], local_scheduler=True)
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=False),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
