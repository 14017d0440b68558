# SPDX-License-Identifier: Apache-2.0
"""A million frames for the HTTP/2 server: random ones, then frames that atheris chooses by coverage.

    python -m perf.fuzz.fuzz_http2 [--frames N] [--seed N] [--coverage DIRECTORY]

Prints figures. Fails on a crash, on a call that is not closed, or if objects or memory of connections are leaked.
"""

import argparse
import os
import sys
import time
import tracemalloc
from random import Random

LEFT_KIB = 512
"""Memory that may remain after a million frames, for caches of regular expressions, enums and the like."""


def at_random(frames: int, seed: int) -> None:
    from tests.support.http2.fuzzing import Figures, alive, fuzz  # noqa: PLC0415  atheris must import them itself

    figures, random = Figures(), Random(seed)
    for faults in range(10):  # create everything that is created once
        fuzz(random, faults, Figures())
    before = alive()
    tracemalloc.start()
    kept, _ = tracemalloc.get_traced_memory()
    began = time.process_time()
    while figures.frames < frames:
        fuzz(random, random.choice((0, 0, 1, 1, 2, 5)), figures)
    seconds = time.process_time() - began
    assert alive() == before, (alive(), before)
    left = (tracemalloc.get_traced_memory()[0] - kept) / 1024
    tracemalloc.stop()
    print(f"at random, seed {seed}: {figures}; {seconds:.0f} s of CPU; {left:.0f} KiB left")
    assert left < LEFT_KIB


def by_coverage(frames: int, directory: str) -> None:
    import atheris  # noqa: PLC0415  only this needs it

    with atheris.instrument_imports(include=["epp.extproc.http2"]):
        from tests.support.http2.fuzzing import ByteRandom, Figures, alive, fuzz  # noqa: PLC0415  as above

    figures = Figures()
    runs = 0

    def one_input(content: bytes) -> None:
        nonlocal runs
        runs += 1
        if content:
            fuzz(ByteRandom(content[1:]), content[0] % 11, figures)
        if figures.frames >= frames:
            assert sum(alive().values()) == 0, alive()
            print(f"by coverage: {figures}; {runs:,} runs", flush=True)
            os._exit(0)  # libFuzzer has no other way to end

    os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    options = ["-max_len=4096", "-len_control=0", "-rss_limit_mb=2048", "-timeout=600"]
    atheris.Setup([sys.argv[0], *options, directory], one_input)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", metavar="DIRECTORY", help="choose by coverage; directory for interesting inputs")
    given = parser.parse_args()
    if given.coverage:
        by_coverage(given.frames, given.coverage)
    else:
        at_random(given.frames, given.seed)


if __name__ == "__main__":
    main()
