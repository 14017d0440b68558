# SPDX-License-Identifier: Apache-2.0
"""The configuration that is measured: llm-d's default profile, which other pickers have as well."""

from epp.config import LoadedConfig, load_text

_TEXT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""


def llm_d_default() -> LoadedConfig:
    """Return it; older versions of this program are measured as well, and do not have it as a sample."""
    return load_text(_TEXT, "llm-d's default")
