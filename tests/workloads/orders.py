"""Busy in a method below functions of its own, until it is killed or its life is over."""

import time

LIFE_S = 600


class Ledger:
    def settle(self, turns):
        x = 1
        for _ in range(turns):
            x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        return x


def serve():
    ledger = Ledger()
    end = time.monotonic() + LIFE_S
    total = 0
    while time.monotonic() < end:
        total ^= ledger.settle(3000)
    return total


print(serve())
