# SPDX-License-Identifier: Apache-2.0
"""A process that has imported the program, and forks a child for each command: importing takes most of a start.

Orders come as JSON over the socket with the descriptor of `argv[1]`: `{"run": arguments, "environment": {...}}`, with
the descriptors of stdout and stderr, is answered with the child's process id; `{"wait": pid}` with its exit code.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

PACKAGES = ("epp.cli", "epp.app", "epp.lab.gateway", "epp.lab.sim")
MOST_BYTES = 2**20


def load() -> dict[str, str]:
    """Import what commands need; return the environment variables that this has set."""
    before = set(os.environ)
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    importlib.import_module("epp.lab.gateway.bootstrap").load_types()  # a second of each gateway
    for point in entry_points(group="epp.plugins"):
        point.load()
    return {name: value for name, value in os.environ.items() if name not in before}


def next_command(control: socket.socket) -> dict | None:
    """Take orders until one is to run a command, and return it in the child; None where there are no more."""
    while True:
        content, descriptors, *_ = socket.recv_fds(control, MOST_BYTES, 2)
        if not content:
            return None
        order = json.loads(content)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            control.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        child = os.fork()
        if not child:
            os.setsid()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        if not child:
            return order
        control.send(b"%d" % child)


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        loaded = load()
        order = next_command(control)
    if order is None:
        return
    os.environ.clear()
    os.environ.update({**loaded, **order["environment"]})
    tempfile.tempdir = None  # which the variables name
    sys.path[:0] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
    sys.argv = ["epp", *order["run"]]
    runpy.run_module("epp", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
