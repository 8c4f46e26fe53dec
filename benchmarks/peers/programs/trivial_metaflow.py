"""One trivial step; Metaflow asks for a start and an end."""

from metaflow import FlowSpec, step


class Trivial(FlowSpec):
    @step
    def start(self):
        self.x = 1
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Trivial()
