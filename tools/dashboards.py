# SPDX-License-Identifier: Apache-2.0
"""Grafana dashboards from tables of panels: one row for each idea, one line for each panel."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

_WIDTH = 24
_HEIGHT = 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A graph."""

    title: str
    unit: str
    """As Grafana names it."""
    queries: Mapping[str, str]
    """Expressions by their legends."""
    text: str = ""
    """What to look for."""
    stacked: bool = False


class Row(NamedTuple):
    """Panels side by side."""

    title: str
    panels: Sequence[Panel]


def _rate(name: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f'sum{grouped} (rate({name}{{job=~"$job"}}[$__rate_interval]))'


def _quantile(share: float, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f'histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket{{job=~"$job"}}[$__rate_interval])))'


def _level(how: str, name: str, by: str = "") -> str:
    grouped = f" by ({by}) " if by else ""
    return f'{how}{grouped}({name}{{job=~"$job"}})'


def _or_zero(expression: str) -> str:
    return f"{expression} or on() vector(0)"


_TRAFFIC = Row(
    "Traffic",
    (
        Panel("Requests", "reqps", {"{{model_name}}": _rate("llm_d_epp_request_total", "model_name")}, stacked=True),
        Panel(
            "Errors",
            "reqps",
            {"{{error_code}}": _or_zero(_rate("llm_d_epp_request_error_total", "error_code"))},
            "Refused or failed, by what clients are told.",
        ),
        Panel("In flight", "short", {"{{model_name}}": _level("sum", "llm_d_epp_request_running", "model_name")}),
    ),
)
_TIMES = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "s",
            {f"p{round(100 * q)}": _quantile(q, "llm_d_epp_request_ttft_seconds") for q in (0.5, 0.9, 0.99)},
        ),
        Panel(
            "Duration",
            "s",
            {f"p{round(100 * q)}": _quantile(q, "llm_d_epp_request_duration_seconds") for q in (0.5, 0.9, 0.99)},
        ),
        Panel(
            "Time per output token, whole request",
            "s",
            {f"p{round(100 * q)}": _quantile(q, "llm_d_epp_request_ntpot_seconds") for q in (0.5, 0.9)},
        ),
    ),
)
_TOKENS = Row(
    "Tokens",
    (
        Panel(
            "Tokens per second",
            "short",
            {
                "prompt": _rate("llm_d_epp_request_input_tokens_sum"),
                "cached": _rate("llm_d_epp_request_cached_tokens_sum"),
                "generated": _rate("llm_d_epp_request_output_tokens_sum"),
            },
        ),
        Panel(
            "Share of prompt tokens found in a cache",
            "percentunit",
            {
                "cached": _rate("llm_d_epp_request_cached_tokens_sum")
                + " / "
                + _rate("llm_d_epp_request_input_tokens_sum")
            },
            "As model servers count them.",
        ),
    ),
)
_ENDPOINTS = Row(
    "Endpoints",
    (
        Panel(
            "Endpoints",
            "short",
            {"ready": _level("sum", "llm_d_epp_ready_endpoints")},
        ),
        Panel(
            "Waiting at each endpoint",
            "short",
            {"{{model_server_endpoint}}": _level("max", "llm_d_epp_per_endpoint_queue_size", "model_server_endpoint")},
        ),
        Panel(
            "KV cache in use",
            "percentunit",
            {"mean": _level("avg", "llm_d_epp_average_kv_cache_utilization")},
        ),
    ),
)
_ANSWERS = Row(
    "Answers",
    (
        Panel(
            "Responses by endpoint",
            "reqps",
            {"{{model_server_endpoint}}": _rate("llm_d_epp_endpoint_responses_total", "model_server_endpoint")},
            stacked=True,
        ),
        Panel(
            "Responses by outcome",
            "reqps",
            {"{{outcome}}": _rate("llm_d_epp_endpoint_responses_total", "outcome")},
            stacked=True,
        ),
        Panel(
            "Ejected endpoints",
            "short",
            {"ejected": _level("sum", "llm_d_epp_outlier_detection_ejections_active")},
        ),
    ),
)
_HARDWARE = Row(
    "Hardware",
    (
        Panel(
            "Picks by accelerator",
            "reqps",
            {"{{accelerator}}": _rate("llm_d_epp_accelerator_selections_total", "accelerator")},
            stacked=True,
        ),
        Panel(
            "Ready endpoints by accelerator",
            "short",
            {"{{accelerator}}": _level("sum", "llm_d_epp_accelerator_ready_endpoints", "accelerator")},
            stacked=True,
        ),
        Panel(
            "Dollars an hour",
            "currencyUSD",
            {
                "{{accelerator}}, in use": _level("sum", "llm_d_epp_accelerator_busy_cost_per_hour", "accelerator"),
                "all": _level("sum", "llm_d_epp_accelerator_cost_per_hour"),
            },
            "Of endpoints with a known price; in use are those with requests in flight.",
        ),
        Panel(
            "Endpoints dropped for their accelerator",
            "cps",
            {"{{reason}}": _or_zero(_rate("llm_d_epp_accelerator_mismatch_total", "reason"))},
        ),
    ),
)
_CLASSES = Row(
    "AcceleratorClasses of the cluster",
    (
        Panel(
            "Devices by class",
            "short",
            {
                "{{accelerator}}": _or_zero(_level("max", "llm_d_epp_accelerator_class_devices", "accelerator")),
                "{{accelerator}}, free": _or_zero(
                    _level("max", "llm_d_epp_accelerator_class_available_devices", "accelerator")
                ),
            },
            "Free are those that no pod requests. 0 without classes.",
        ),
    ),
)
_DECIDING = Row(
    "Deciding",
    (
        Panel(
            "Time for a decision",
            "s",
            {f"p{round(100 * q)}": _quantile(q, "llm_d_epp_scheduler_e2e_duration_seconds") for q in (0.5, 0.99)},
        ),
        Panel(
            "Time in plugins, per second",
            "s",
            {"{{plugin_name}}": _rate("llm_d_epp_plugin_duration_seconds_sum", "plugin_name")},
            "A plugin that takes more than its neighbours is worth a look.",
            stacked=True,
        ),
        Panel(
            "Plugin errors",
            "reqps",
            {"{{plugin_name}}": _or_zero(_rate("llm_d_epp_plugin_failures_total", "plugin_name"))},
        ),
    ),
)
_ITSELF = Row(
    "The picker itself",
    (
        Panel(
            "Age of what is known of endpoints",
            "s",
            {"oldest": _level("max", "llm_d_epp_snapshot_age_seconds")},
            "Requests are routed by nothing older.",
        ),
        Panel(
            "Event loop lag",
            "s",
            {f"p{round(100 * q)}": _quantile(q, "llm_d_epp_event_loop_lag_seconds") for q in (0.5, 0.99)},
        ),
        Panel(
            "Slow plugin calls",
            "ops",
            {"{{plugin_name}}": _or_zero(_rate("llm_d_epp_plugin_slow_calls_total", "plugin_name"))},
            "All requests wait during such a call.",
        ),
        Panel(
            "Budgets in use",
            "percentunit",
            {
                "{{budget}}": _level("max", "llm_d_epp_budget_used", "budget")
                + f" / ({_level('max', 'llm_d_epp_budget_limit', 'budget')} > 0)"
            },
            "Beyond one, gateways wait or are refused.",
        ),
    ),
)
_RELOADS = Row(
    "Configuration",
    (
        Panel(
            "Configuration in effect",
            "short",
            {
                "generation": _level("max", "llm_d_epp_config_generation"),
                "newest file is in effect": _level("min", "llm_d_epp_config_last_reload_successful"),
            },
        ),
        Panel(
            "Log lines lost",
            "cps",
            {"lost": _or_zero(_rate("llm_d_epp_log_lines_lost_total"))},
        ),
    ),
)

DASHBOARDS: Mapping[str, tuple[str, Sequence[Row]]] = {
    "requests": ("Endpoint picker: requests", (_TRAFFIC, _TIMES, _TOKENS)),
    "pool": ("Endpoint picker: pool and hardware", (_ENDPOINTS, _ANSWERS, _HARDWARE, _CLASSES)),
    "picker": ("Endpoint picker: the picker itself", (_DECIDING, _ITSELF, _RELOADS)),
}
"""Title and rows, by the name of the file."""


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": "label_values(llm_d_epp_ready_endpoints, job)", "refId": "job"},
            "definition": "label_values(llm_d_epp_ready_endpoints, job)",
            "includeAll": True,
            "multi": True,
            "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panel(panel: Panel, number: int, x: int, y: int, width: int) -> dict[str, Any]:
    style = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 0}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": style}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _DATASOURCE, "expr": expression, "legendFormat": legend}
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    numbers, y = count(1), 0
    for row in rows:
        yield {
            "id": next(numbers),
            "type": "row",
            "title": row.title,
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
            "collapsed": False,
            "panels": [],
        }
        y += 1
        width = _WIDTH // len(row.panels)
        for place, panel in enumerate(row.panels):
            yield _panel(panel, next(numbers), place * width, y, width)
        y += _HEIGHT


def dashboard(name: str) -> str:
    """Return the JSON of a dashboard, as Grafana imports it."""
    title, rows = DASHBOARDS[name]
    content = {
        "uid": f"inference-epp-{name}",
        "title": title,
        "tags": ["inference", "llm-d"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels(rows)),
    }
    return json.dumps(content, indent=2) + "\n"
