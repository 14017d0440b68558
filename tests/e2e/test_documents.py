# SPDX-License-Identifier: Apache-2.0
"""Documents with a walk, command by command as they are written, with the package installed from its wheel.

They run outside the checkout, in namespaces of their own where the machine allows that: no port is taken there, and
nothing is left behind.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import blocks, commands, file_of
from tests.support.kube.apart import NAMESPACES
from tests.support.wheels import REPOSITORY, build_wheel, install

NOT_RUN = {
    "README.md": ("make run", "make test", "export PATH"),
    "deploy/README.md": ("docker build", "helm ", "kubectl ", "kind ", "curl -sf -D - --retry 60"),
    "docs/clusters.md": ("kubectl ", "TOKEN="),
    "docs/admin-port.md": ("kubectl ",),
    "docs/tenants.md": ("kubectl ",),
    "docs/files-and-prices.md": ("kubectl ",),
}
"""Commands that install packages, as the text beside them says, and those for a cluster: `tests/kube` and
`tests/gateways` run these."""
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""
SECONDS = 110
pytestmark = pytest.mark.timeout(4 * SECONDS)  # one may have to wait for the others


@pytest.fixture(scope="module")
def binaries(tmp_path_factory) -> Path:
    """The commands of the package, installed from its wheel."""
    directory = tmp_path_factory.mktemp("installed")
    return install(build_wheel(directory), directory / "venv")


@pytest.fixture(scope="module")
def isolated() -> tuple[str, ...]:
    """What runs a command in namespaces of its own; nothing where the machine does not allow that."""
    try:
        tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False, timeout=20)
    except FileNotFoundError:
        return ()
    return () if tried.returncode else (*NAMESPACES, sys.executable, "-c", LOOPBACK_UP)


def script_of(document: str) -> tuple[str, list[str]]:
    """Return a shell script of all the commands and files of a document, and the commands."""
    lines, run = ["set -e"], []
    for block in blocks(REPOSITORY / document):
        if block.language == "console":
            for command in commands(block):
                if not command.startswith(NOT_RUN.get(document, ("\0",))):
                    lines += [f"echo '@@ {len(run)}'", command]
                    run.append(command)
        elif found := file_of(block):
            name, text = found
            lines += [f"cat > {name} <<'END OF FILE'\n{text}END OF FILE"]
    return "\n".join([*lines, "echo '@@ end'", ""]), run


@pytest.fixture
def ports(isolated, tmp_path_factory):
    """Wait until no other process of these tests runs a document, where all have the same ports."""
    with (tmp_path_factory.getbasetemp().parent / "documents.lock").open("w") as lock:
        if not isolated:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def walk(binaries, isolated, ports, tmp_path):
    """Run a document; return each command with the output from there to the next one."""

    def walk(document: str, seconds: float = SECONDS) -> dict[str, str]:
        script, run = script_of(document)
        if document == "deploy/README.md":
            shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy")
        (tmp_path / "walk.sh").write_text(script)
        said = tmp_path / "said.txt"
        environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        environment.pop("PYTHONPATH", None)
        with said.open("w") as output:
            process = subprocess.Popen(
                [*isolated, "bash", "walk.sh"],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                exit_code = process.wait(seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what the script left running
        text = said.read_text()
        assert exit_code == 0, text
        parts = re.split(r"@@ (?:\d+|end)\n", text)[1:-1]  # output need not end a line
        return dict(zip(run, parts, strict=True))

    return walk


def output_of(walked: dict[str, str], beginning: str) -> str:
    """Return the output of the one command that begins so."""
    (output,) = [output for command, output in walked.items() if command.startswith(beginning)]
    return output


def entries(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("document", ["README.md", pytest.param("docs/own-servers.md", marks=pytest.mark.slow)])
def test_first_walk_works_as_it_is_written(walk, document):
    walked = walk(document)
    assert '"max_model_len":8192' in output_of(walked, "curl -sf --retry 60")
    answered = output_of(walked, "curl -sf -D -")
    assert re.search(r"^x-sim-server: (h100|t4)\r?$", answered, re.MULTILINE)
    assert re.search(r"^x-epp-endpoint: (h100|t4)\b", answered, re.MULTILINE)
    assert "x-epp-reason: " in answered


@pytest.mark.slow
def test_profiles_work_as_they_are_written(walk):
    walked = walk("docs/profiles.md")
    assert "heterogeneous-cost" in output_of(walked, "epp config list")
    assert "config.yaml: ok" in output_of(walked, "epp check config.yaml")
    assert '"ready":true' in output_of(walked, "curl -sf http://127.0.0.1:9090/healthz").replace(" ", "")


@pytest.mark.slow
def test_accelerators_work_as_they_are_written(walk):
    walked = walk("docs/accelerators.md")
    assert "cheap" in output_of(walked, "epp accelerators --config-file hardware")
    assert "3g.20gb" in output_of(walked, "epp accelerators --config-file by-uuid")
    short, _, long = [
        output for command, output in walked.items() if command.startswith(("curl -sf -D - -d", "printf"))
    ]
    assert re.search(r"^x-sim-server: t4\r?$", short, re.MULTILINE)
    assert re.search(r"^x-sim-server: h100\r?$", long, re.MULTILINE)
    assert "services.yaml: ok" in output_of(walked, "epp check --strict")
    assert "acceleratorSelector.stratgy is unknown: did you mean 'strategy'?" in output_of(walked, "epp check services")
    idle = output_of(walked, "curl -sf --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:9093")
    assert '"freeDevices":2,"dollarsPerHour":8.5' in idle


@pytest.mark.slow
def test_deployment_works_as_it_is_written(walk, tmp_path):
    walked = walk("deploy/README.md")
    assert '"ready":true' in output_of(walked, "curl -sf http://127.0.0.1:9090/healthz").replace(" ", "")
    models = [output for command, output in walked.items() if "/v1/models" in command]
    assert len(models) == 3
    assert all('"max_model_len":8192' in output for output in models)
    *early, served, refused = entries(tmp_path / "access.log")
    assert {entry["status"] for entry in early} <= {503}  # before the picker was ready
    assert served["status"] == 200
    assert served["destination"] == served["served_by"]
    assert served["destination"] in {"127.0.0.1:8001", "127.0.0.1:8002"}
    assert (refused["status"], refused["details"], refused["served_by"]) == (400, "MalformedBodyError", None)
    without_picker = entries(tmp_path / "fail-open.log")[-1]
    assert (without_picker["status"], without_picker["destination"]) == (200, None)


@pytest.mark.slow
def test_objectives_and_rewrites_work_as_they_are_written(walk):
    walked = walk("docs/objectives-and-rewrites.md")
    *_, models, first, nameless, metrics, _, shed, served, _ = walked.values()
    assert '"id":"assistant-v2"' in models
    assert re.search(r"^x-epp-reason: .*; model chosen by canary\r?$", first, re.MULTILINE)
    assert '"model":"assistant"' in first
    assert '"model":"base"' in nameless
    assert 'model_name="",model_rewrite_name="anything-else",target_model="base"} 1.0' in metrics
    assert 'model_name="assistant",model_rewrite_name="canary",target_model="assistant-v' in metrics
    assert "x-llm-d-request-dropped-reason: rejected-saturated" in shed
    assert "HTTP/1.1 200 OK" in served


@pytest.mark.slow
def test_clusters_work_as_they_are_written(walk):
    walked = walk("docs/clusters.md")
    metrics, scores = output_of(walked, "curl -sf http://127.0.0.1:9090/metrics"), output_of(walked, "until curl")
    assert 'state="valid"} 1.0' in metrics
    assert re.search(r"^llm_d_epp_cluster_object_problems\{.*\} 1\.0$", metrics, re.MULTILINE)
    found = {each["metadata"]["namespace"]: each for each in json.loads(scores)["items"]}
    assert found.keys() == {"east", "west"}
    items = {each["name"]: each["value"] for each in found["east"]["status"]["scores"]}
    assert (items["queueHeadroom"], items["endpointsAvailable"]) == (100, 100)


@pytest.mark.slow
def test_routing_across_clusters_works_as_it_is_written(walk):
    walked = walk("docs/multi-cluster.md")
    end = next(number for number, command in enumerate(walked) if command.startswith("kill "))
    *_, first, _, west, _, east, _, refused, missing = list(walked.values())[:end]
    assert re.search(r"^x-sim-server: east-1\r?$", first, re.MULTILINE)
    assert "local-cluster-scorer" in first
    assert "west-1" in west
    assert "east-1" in east
    assert "no cluster is available for this request" in refused
    assert 'reason="missing"} 0' in missing
    sources = re.findall(r'"source":"(\w+)"', output_of(walked, "curl -sf http://127.0.0.1:9091/api/endpoints"))
    assert sorted(sources) == ["gateways", "import", "pods"]
    metrics = output_of(walked, "curl -sf http://127.0.0.1:9090/metrics | grep ^llm_d_epp_endpoint_source")
    assert 'llm_d_epp_endpoint_source_in_trouble{source="gateways"} 1' in metrics
    assert 'llm_d_epp_endpoint_source_hidden{source="gateways"} 1' in metrics
    assert 'llm_d_epp_endpoint_source_endpoints{source="import"} 1' in metrics


@pytest.mark.slow
def test_flow_control_works_as_it_is_written(walk):
    walked = walk("docs/flow-control.md")
    *_, expired, _, served, _ = walked.values()
    assert "priority -10: 100 requests, 1 GB, for 2 s" in output_of(walked, "epp check flow.yaml")
    assert "x-llm-d-request-dropped-reason: rejected-ttl-expired" in expired
    assert "HTTP/1.1 200 OK" in served
    assert float(re.search(r"^after ([\d.]+) s$", served, re.MULTILINE)[1]) >= 1


@pytest.mark.slow
def test_quotas_work_as_they_are_written(walk):
    *_, too_long, served, told, used, tried, made, _, _, of_cluster = walk(
        "docs/quotas.md"
    ).values()  # two are there twice
    assert "single.max.outputTokens of 'team-a' is 100, and with this request 200" in too_long
    assert '"completion_tokens":100' in served.replace(" ", "")
    assert "retry-after: " in told
    assert '"key":"total.max.tokensPerMinute"' in used
    assert '"dryRun":true,"applied":false' in tried
    assert '"dryRun":false,"applied":true' in made
    assert '"total":{"acceleratorMemory":"20Gi"}' in of_cluster


@pytest.mark.slow
def test_tf_16_admin_port_tries_sets_and_takes_back_a_quota_and_tf_6_says_where_requests_would_go(walk):
    walked = list(walk("docs/admin-port.md").values())
    *_, tried, made, shown, back, gone, _, refused, answered, _ = walked[:13]
    for each in (tried, made):
        assert '"headroom":{"total.max.workers.limit":50}' in each
    assert '"total":{"concurrentRequests":50}' in shown
    assert '"quota":null' in back
    assert "has no quota" in gone
    assert "Unauthorized" in refused
    assert '{"quotas":[]}' in answered
    picked, unroutable, busy, from_yaml, ranking, hardware, config = walked[-7:]
    assert '"endpoint":"127.0.0.1:8001"' in picked
    assert '"type":"NoEndpoints"' in unroutable
    assert '"pick":' in busy
    assert '"model":"m"' in from_yaml
    assert '"picked":["127.0.0.1:8001"]' in ranking
    assert '"allocation":{"default/127.0.0.1:8001":' in hardware
    assert '"type":"max-score-picker"' in config


@pytest.mark.slow
def test_what_if_is_answered_for_requests_that_came_and_for_one_at_a_time(walk):
    walked = walk("docs/what-if.md")
    report = output_of(walked, "epp replay")
    differing, replayed = map(int, re.search(r"(\d+) of (\d+) picks differ", report).groups())
    assert 40 <= replayed <= 41  # the list of models may be one more
    assert f"the first configuration reproduces {replayed} of {replayed} recorded picks" in report
    assert 0 < differing < replayed
    before, after = map(int, re.search(r"^ *on t4 +(\d+) \(.*\) +(\d+) \(.*\)$", report, re.MULTILINE).groups())
    assert before < after  # all, but for those that found the server at work
    assert re.search(r"^h100 +t4 +\d+$", report, re.MULTILINE)
    assert "cheapest-scorer is called again" in report
    explained = output_of(walked, "for file in as-it-is")
    assert explained.count("simulated") >= 3
    assert "h100" in explained


@pytest.mark.slow
def test_gie_9_shadows_say_what_they_would_have_done_and_what_it_costs(walk):
    *_, page, explained = walk("docs/shadow-profiles.md").values()
    shown = {}
    for line in page.splitlines():
        if line.startswith("llm_d_epp_shadow_"):
            name, _, value = line.rpartition(" ")
            shown[name] = float(value)
    runs = {name: value for name, value in shown.items() if "_runs_total" in name}
    assert sum(runs.values()) in {40, 41}  # the list of models may be one more
    picks = 'llm_d_epp_shadow_picks_total{accelerator="t4",by="%s",profile="cheaper"}'
    t4, real = shown[picks % "shadow"], shown.get(picks % "real", 0.0)
    assert t4 > real
    cost = 'llm_d_epp_shadow_cost_per_hour_dollars_total{by="%s",profile="cheaper"}'
    assert shown[cost % "shadow"] < shown[cost % "real"]
    in_time = sum(value for name, value in runs.items() if '"timeout"' not in name)  # on a busy machine one may not be
    assert shown['llm_d_epp_shadow_priced_picks_total{profile="cheaper"}'] == in_time
    assert "cheaper" in explained


@pytest.mark.slow
def test_tenants_work_as_they_are_written(walk):
    walked = walk("docs/tenants.md")
    *_, unknown, missing, _, shed, served, metrics, _, moved, _ = walked.values()
    assert "tenants.yaml: ok" in output_of(walked, "epp check tenants.yaml")
    assert '"code":"invalid_api_key"' in unknown
    assert "the API key of this request is unknown" in unknown
    assert "this request has no API key" in missing
    assert "status 401" in unknown.splitlines()  # log lines of the gateway may follow
    assert "status 401" in missing.splitlines()
    assert "x-llm-d-request-dropped-reason: rejected-saturated" in shed
    assert "HTTP/1.1 200 OK" in served
    assert 'fairness_id="night-jobs",model_name="meta-llama/Llama-3.1-8B-Instruct",priority="-1"' in metrics
    assert 'fairness_id="chat",model_name="meta-llama/Llama-3.1-8B-Instruct",priority="10"' in metrics
    assert "HTTP/1.1 200 OK" in moved
    assert not [key for key in ("sk-of-chat", "sk-of-night-jobs", "sk-of-nobody") if key in "".join(walked.values())]


@pytest.mark.slow
def test_tf_5_decisions_are_explained_as_it_is_written(walk):
    *_, served, first, refused, second, listed, stored, _ = walk("docs/decisions.md").values()
    assert '"text"' in served
    for part in ("affordable: 3 -> 2", "✗ h100: ", "picked", "t4 at 127.0.0.1:8002", "natural, status 200"):
        assert part in first
    assert "rejected-constraint" in refused or "no model server meets the requirements of this request" in refused
    assert "429 UnmetConstraintError" in second
    for name in ("h100", "t4", "a100"):
        assert f"✗ {name}: " in second
    (record,) = json.loads(next(line for line in listed.splitlines() if line.startswith("{")))["decisions"]
    text = stored[stored.index("{") : stored.rindex("}") + 1]
    assert json.loads(text) == record
    assert record["ending"]["cause"] == "natural"


@pytest.mark.slow
def test_security_works_as_it_is_written(walk):
    *_, served, arrived, refused, _, _, metrics = walk("docs/security.md").values()  # one command is there twice
    assert '"model":"meta-llama/Llama-3.1-8B-Instruct"' in served
    (record,) = json.loads(next(line for line in arrived.splitlines() if line.startswith("[")))  # beside log lines
    assert record["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert not {"x_prefiller_host_port", "x-llm-d-model-name-rewrite"} & {name for name, _ in record["headers"]}
    assert "status 401" in refused
    assert 'llm_d_epp_extproc_protocol_errors_total{kind="undecodable"} 0.0' in metrics


@pytest.mark.slow
def test_observability_works_as_it_is_written(walk):
    walked = walk("docs/observability.md")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    line = json.loads(output_of(walked, "until grep '\"x-request-id").splitlines()[-1])
    assert (line["msg"], line["status"], line["trace_id"]) == ("request", 200, trace_id)
    names = set(re.findall(r'"name": "(\S+)"', output_of(walked, "grep '\"name\"'")))
    assert {"gateway.request", "gateway.request_orchestration", "run_scheduler_profile", "pick_endpoints"} <= names
    state = json.loads(output_of(walked, "curl -sf http://127.0.0.1:9090/debug/plugins/state"))
    assert state["plugins"]["approx-prefix-cache-producer"]["state"]["totalEndpoints"] == 1


@pytest.mark.slow
def test_configurations_for_engines_are_accepted(walk):
    walked = walk("docs/engines.md")
    assert output_of(walked, "epp check trtllm.yaml").startswith("trtllm.yaml: ok")
    assert output_of(walked, "epp check mine.yaml").startswith("mine.yaml: ok")


@pytest.mark.slow
def test_calibration_works_as_it_is_written(walk):
    walked = walk("docs/calibration.md")
    assert "held-out requests" in output_of(walked, "epp calibrate")
    assert output_of(walked, "grep prefill").startswith("prefill_tokens_per_second: ")


def test_commands_that_are_not_run_are_in_the_documents():
    for document, beginnings in NOT_RUN.items():
        written = [
            command
            for block in blocks(REPOSITORY / document)
            if block.language == "console"
            for command in commands(block)
        ]
        assert all(any(command.startswith(each) for command in written) for each in beginnings)
        assert len(written) > len(beginnings)


def test_command_is_the_one_of_the_wheel(binaries, tmp_path):
    program = "import epp; print(epp.__file__)"
    said = subprocess.run(
        [binaries / "python", "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(said.stdout.strip()).is_relative_to(binaries.parent)


@pytest.mark.slow
def test_ome_7_pool_in_files_works_as_it_is_written(walk):
    walked = walk("docs/files-and-prices.md")
    listed, priced, moved, *_ = [output for command, output in walked.items() if command.startswith("epp accelerators")]
    assert re.search(
        r"price: no class, .* give --prices FILE, .*\n.*llm/big-rank-0, llm/small-rank-0", listed, re.DOTALL
    )
    assert re.search(r"llm/big-rank-0 .* 12\.29 ", priced)
    assert re.search(r"llm/small-rank-0 .* 0\.16 ", priced)
    assert "prices.yaml: p5.48xlarge in us-east-1: per_hour" in priced
    assert re.search(r"llm/small-rank-0 .* 0\.20 ", moved)
    served = re.findall(r"^x-epp-endpoint: (\S+?)\r?$", "".join(walked.values()), re.MULTILINE)
    assert served == ["small-rank-0=127.0.0.1:8002", "big-rank-0=127.0.0.1:8001"]
    assert 'endpoints_without_price{name="default"} 0.0' in output_of(walked, "curl -sf http://127.0.0.1:9090/metrics")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_profile_is_tuned_and_taken_live(walk):
    walked = walk("docs/tuning.md", 500)
    assert "whole request" in output_of(walked, "epp replay trace.jsonl")
    assert re.match(r"[67] trials, ", output_of(walked, "epp tune trace.jsonl"))


@pytest.mark.slow
def test_replay_compares_configurations_and_reads_profiles(walk):
    walked = walk("docs/replay.md")
    table = output_of(walked, "epp replay chat.jsonl --endpoints endpoints.yaml --config llm-d-default")
    assert re.search(r"^requests +(\d+) +\1$", table, re.MULTILINE)
    assert re.search(r"^adaptive against llm-d-default ", table, re.MULTILINE)
    assert re.search(r"^first token, p90 +-.* better *$", table, re.MULTILINE)
    figures = json.loads(output_of(walked, "epp replay chat.jsonl --endpoints endpoints.yaml --config adaptive"))
    assert "h100" in figures["replays"][0]["figures"]["classes"]


@pytest.mark.slow
def test_traces_are_made_recorded_and_shown(walk):
    walked = walk("docs/traces.md")
    assert "(jsonl)" in output_of(walked, "epp trace show chat.jsonl.gz")
    assert "3 requests in 4.0 s (csv)" in output_of(walked, "epp trace show requests.csv")
    assert "tenants    team-a 67%, team-b 33%" in output_of(walked, "epp trace show requests.jsonl")
    recorded = output_of(walked, "epp trace show decisions.jsonl")
    assert "decisions.jsonl: 40 requests in " in recorded
    # Four prompts of ten requests each: 36 of 40 have a prompt that was there before, of 16 full blocks of 64 tokens.
    assert 0.75 < float(re.search(r"([\d.]+)% of the prompt tokens were in an earlier", recorded)[1]) / 100 < 0.95


@pytest.mark.slow
def test_workers_are_one_picker(walk, tmp_path):
    (tmp_path / "epp").mkdir()
    (tmp_path / "epp" / "__main__.py").write_text("raise SystemExit('not this one')")
    walked = walk("docs/workers.md")
    assert output_of(walked, "curl -s http://127.0.0.1:9081/healthz").strip() == (
        "{'serving': 2, 'starting': 0, 'replaced': 0}"
    )
    counted = output_of(walked, "curl -s http://127.0.0.1:9081/metrics").splitlines()
    assert sum(float(line.rpartition(" ")[2]) for line in counted) >= 8


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_two_pickers_share_what_they_know(walk):
    walked = walk("docs/several-pickers.md")
    first, second = output_of(walked, "grep -h x-sim-server").split("\n")[:2]
    assert first == second
    shared, alone = (output for command, output in walked.items() if "shared_state" in command and "curl" in command)
    assert "'connected': True, 'other_pickers': 1" in shared
    assert "'connected': False" in alone
    assert "'problem'" in alone
