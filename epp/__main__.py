"""`python -m epp` is the `epp` command."""

from epp.cli.app import main

main()
