# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: version, help, completion, and what is imported for them."""

import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.cli.commands import COMMANDS

HEAVY = ("aiohttp", "grpc", "numpy", "prometheus_client", "rich", "structlog", "google.protobuf")
NETWORK = ("aiohttp", "grpc", "prometheus_client")
UNUSED = ("cryptography", "lightkube", "numpy.random")
"""Of a picker with the default configuration and a certificate of its own."""
DEFAULT_CONFIG = Path(__file__).parents[3] / "config" / "llm-d-default.yaml"
ASKED = [["--version"], ["--help"], *([*name.split(), "--help"] for name in COMMANDS)]


def imported(*commands: list[str], modules: tuple[str, ...] = HEAVY, **environment: str) -> list[str]:
    """Run the program for each of the commands; return those of the modules that it has imported at the end."""
    program = (
        "import contextlib, sys\n"
        "from epp.cli.app import main\n"
        f"for arguments in {commands!r}:\n"
        "    sys.argv = ['epp', *arguments]\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main()\n"
        f"print(*(set({modules!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment or None)
    assert ended.stdout
    return ended.stderr.split()


def completing(words: str) -> dict[str, str]:
    """The environment in which bash asks for what can follow these words."""
    count = len(words.split()) - (not words.endswith(" "))
    return {"_EPP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}


def test_help_and_version_import_nothing_heavy():
    assert imported(*ASKED) == []


@pytest.mark.parametrize("words", ["epp ", "epp serve --", "epp gateway --cluster-type "])
def test_completion_imports_nothing_heavy(words):
    assert imported([], **completing(words)) == []


def test_check_and_plugins_import_nothing_that_talks_to_a_network():
    assert imported(["check", str(DEFAULT_CONFIG)], ["plugins"], modules=NETWORK) == []


def test_picker_without_a_cluster_or_files_loads_no_libraries_for_these():
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('loaded:', *(set({UNUSED!r}) & sys.modules.keys()), file=sys.stderr))\n"
        "from epp.cli.app import main\n"
        "main()\n"
    )
    ports = ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--drain-quiet-period=0s"]
    command = [sys.executable, "-c", program, "serve", "--endpoints=127.0.0.1:9", "--bind-address=127.0.0.1", *ports]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as picker:
        assert picker.stderr is not None
        lines = []
        try:
            for line in picker.stderr:
                lines.append(line)
                if '"msg":"ready"' in line:
                    picker.send_signal(signal.SIGTERM)
        finally:
            picker.kill()
    assert lines[-1] == "loaded:\n", lines


def test_version_is_that_of_the_package():
    shown = CliRunner().invoke(application(), ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"epp {metadata.version('inference-epp')}\n")


@pytest.mark.parametrize("arguments", ASKED[1:], ids=" ".join)
def test_help_fits_into_80_columns_untruncated(arguments):
    shown = CliRunner().invoke(application(), arguments, env={"COLUMNS": "80"}).output
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"\w\.\.\.", shown)


def test_every_command_is_summed_up_in_full():
    for name, flags in COMMANDS.items():
        group = name.split()[:-1]
        shown = " ".join(CliRunner().invoke(application(), [*group, "--help"], env={"COLUMNS": "80"}).output.split())
        assert " ".join(flags.__doc__.partition("\n\n")[0].split()) in shown


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("epp s", {"serve", "sim-server"}),
        ("epp serve --drain", {"--drain-timeout", "--drain-quiet-period"}),
        ("epp gateway --cluster-type ", {"auto", "original-dst", "override-host"}),
        ("epp serve --secure-serving ", {"true", "false"}),
        ("epp sim-server --preset a", {"a100", "a100-3g.20gb"}),
    ],
)
def test_completion_offers_commands_flags_and_values(words, offered):
    shown = CliRunner().invoke(application(), [], env=completing(words), prog_name="epp")
    assert set(shown.output.split()) == offered
