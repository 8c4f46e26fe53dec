"""One trivial task."""

import luigi


class One(luigi.Task):
    def output(self):
        return luigi.LocalTarget("one")

    def run(self):
        with self.output().open("w") as file:
            file.write("1")


if __name__ == "__main__":
    luigi.build([One()], local_scheduler=True)
