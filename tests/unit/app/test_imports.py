# SPDX-License-Identifier: Apache-2.0
"""What the first request needs is imported before it comes."""

import subprocess
import sys

MEDIAN = """
import sys
import numpy as np
import epp.app
before = set(sys.modules)
np.median([1.0, 2.0])
np.unique([1, 2], return_inverse=True)
sys.exit(sorted(set(sys.modules) - before) or 0)
"""


def test_numpy_imports_nothing_at_a_request():
    assert subprocess.run([sys.executable, "-c", MEDIAN], check=False).returncode == 0
