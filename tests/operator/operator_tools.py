# SPDX-License-Identifier: Apache-2.0
"""Programs of others that these tests run: a browser, and Prometheus with its tool.

    python -m tests.operator.operator_tools

installs what is missing, with apt-get and the rights of root.
"""

import sys

from tests.support.debian_programs import install

PACKAGES = {"chromium": "chromium", "prometheus": "prometheus", "promtool": "prometheus"}
"""Debian's package of each program."""


if __name__ == "__main__":
    sys.exit(install(PACKAGES))
