# SPDX-License-Identifier: Apache-2.0
"""Alert rules: Prometheus's own tool reads them, each fires when it should, and names metrics that exist."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
KNOWN = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
NAME = re.compile(r"\bllm_d_epp_\w+")


def family(name: str) -> str:
    """Return the metric that a series belongs to."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    return name if name in KNOWN else stem


def test_each_alert_fires_when_it_should_and_none_otherwise(program: Callable[[str], str]):
    told = subprocess.run(
        [program("promtool"), "test", "rules", "alerts_test.yaml"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_all_alerts_are_tried():
    alerts = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    trial = yaml.safe_load((HERE / "alerts_test.yaml").read_text())["tests"][0]
    assert trial["promql_expr_test"][0]["exp_samples"][0]["value"] == len(alerts) == len(set(alerts))


def test_rules_and_dashboards_name_metrics_that_exist():
    for path in (RULES, *sorted((ROOT / "deploy" / "grafana").glob("*.json"))):
        names = {family(name) for name in NAME.findall(path.read_text())}
        assert names
        assert names - KNOWN == set(), path.name
