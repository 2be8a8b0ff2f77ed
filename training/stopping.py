"""Signals that ask a training to stop."""

import os
import signal
from types import FrameType

import torch
from accelerate import Accelerator


class StopSignal:
    """SIGTERM, Ctrl-C and a closed terminal as a wish, granted after the step at hand.

    Only a second Ctrl-C acts at once. Other signals may well come twice: launchers such as torchrun
    pass on, Ctrl-C too, what their workers have already received.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopSignal":
        nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # a terminal may well close
        wanted = [number for number in self.SIGNALS if number != signal.SIGHUP or not nohup]
        self.old = {number: signal.signal(number, self.receive) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if number == signal.SIGINT and "LOCAL_RANK" not in os.environ:  # which launchers set
            signal.signal(number, self.old[number])

    def on_any_rank(self, accelerator: Accelerator) -> int:
        """Number of a signal that any of the processes received; 0 for none."""
        number = self.received or 0
        if accelerator.num_processes == 1:
            return number
        asked = torch.tensor([number], device=accelerator.device)
        return int(accelerator.gather(asked).max())
