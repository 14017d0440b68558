"""The `epp` command and its subcommands."""

import sys

import typer

from epp.cli.demo import demo
from epp.cli.flags import UnsupportedFlagError, go_spelling
from epp.cli.gateway import gateway
from epp.cli.serve import serve
from epp.cli.sim_server import sim_server
from epp.observability import logs

app = typer.Typer(
    name="epp",
    help="An endpoint picker for LLM inference gateways: which model server, on which accelerator, and why.",
    no_args_is_help=True,
    rich_markup_mode=None,  # whole flag names, and brackets as they are written
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(gateway)
app.command("sim-server")(sim_server)
app.command()(demo)


def main() -> None:
    """Run the command line."""
    logs.configure()  # for what is said of the flags, before -v is read
    try:
        arguments = go_spelling(sys.argv[1:])
    except UnsupportedFlagError as error:
        sys.exit(f"error: {error}")
    app(args=arguments)
