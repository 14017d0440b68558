# SPDX-License-Identifier: Apache-2.0
"""`python -m epp` is the `epp` command."""

from epp.cli.app import main

main()
