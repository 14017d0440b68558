# SPDX-License-Identifier: Apache-2.0
"""The measured configuration: llm-d's default profile, which other pickers also have."""

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
    """Return the configuration, which is not a sample in older versions that are also measured."""
    return load_text(_TEXT, "llm-d's default")
