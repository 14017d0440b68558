# SPDX-License-Identifier: Apache-2.0
"""Install a Redis server, with apt-get and the rights of root: `python -m tests.shared_index.install_server`."""

import sys

from tests.support.debian_programs import install

PACKAGES = {"redis-server": "redis-server"}

if __name__ == "__main__":
    sys.exit(install(PACKAGES))
