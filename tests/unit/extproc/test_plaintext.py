# SPDX-License-Identifier: Apache-2.0
"""A server without TLS."""

import subprocess
import sys


def test_plaintext_does_not_load_cryptography():
    program = "import epp.app, epp.lab.gateway.local, sys; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
