# Two commands: `make run` starts the demo (on another port with `make run PORT=8081`), `make test` runs what is to hold at every commit, in
# five minutes on two cores. CONTRIBUTING.md lists the other targets.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Several processes share the tests: each begins with its part of them, and takes from others when it has none left. There are
# more of them than cores, since tests wait for other processes at times.
PARALLEL := -n 4 --dist worksteal
# For tests that keep the cores busy, or whose servers do.
IN_THREE := -n 3 --dist worksteal
IN_TWO := -n 2 --dist worksteal
# Hundreds of processes start in tests; none has to compile what another did.
unexport PYTHONDONTWRITEBYTECODE

# Installs with pip, and shows each package as it is fetched; the exit code is pip's.
define install
@echo "$(1)"
@exec 4>&1; exit $$({ { $(PIP) install $(2) || echo $$? >&3; } | awk "$$SHOW_PACKAGES" >&4; } 3>&1)
endef
export define SHOW_PACKAGES
/^Collecting / { sub(/ .from .*/, ""); sub(/^Collecting /, "  "); sub(/==/, " "); print; fflush() }
/^Installing collected/ { print "  unpacking ..."; fflush() }
endef

.PHONY: run test lint types contracts unit e2e main others properties slow endurance e2e-grpcio h2spec fuzz docs site manifests picture bench bench-profiles bench-chart \
  bench-workloads bench-scale replay-proof overload overload-ci hostile hostile-ci soak supply operator test-redis test-vllm tuning-vllm test-kube kube-assets \
  test-gateways gateway-assets test-engines engine-assets bench-paper bench-herding bench-shared lock clean

run: .venv/run
	@$(BIN)/epp demo $(if $(PORT),--listen=127.0.0.1:$(PORT))

test: lint types contracts unit main

lint: .venv/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/test
	$(BIN)/mypy

contracts: .venv/test
	$(BIN)/lint-imports

# With UNIT="not slow and not hypothesis", without the property tests, which `make slow` runs too.
UNIT := not slow
unit: .venv/test
	$(BIN)/pytest $(PARALLEL) -m "$(UNIT)" tests/unit tests/contract

# End-to-end tests: `main` of requests, modes and the picker's own life, in a minute, and `others`.
e2e: main others
MAIN_TESTS := $(patsubst %,tests/e2e/test_%.py,requests modes headers_and_models config_reload command_serve picker_down accelerators)
main: .venv/test
	$(BIN)/pytest $(PARALLEL) -m "not slow" $(MAIN_TESTS)

others: .venv/test
	$(BIN)/pytest $(PARALLEL) -m "not slow" $(MAIN_TESTS:%=--ignore=%) tests/e2e

# All property tests, with examples that are drawn anew each time.
properties: .venv/test
	$(BIN)/pytest $(PARALLEL) -m "hypothesis and not slow" --hypothesis-profile=random tests/unit tests/contract

# What takes long: many examples of each property, ready-made profiles on simulated fleets, floods, deaths of servers, the
# documents as they are written.
slow: .venv/test
	$(BIN)/pytest $(IN_THREE) -m "(slow or hypothesis) and not endurance" --hypothesis-profile=many tests/unit tests/contract tests/e2e

# What takes minutes each, such as a hundred deaths of workers.
endurance: .venv/test
	$(BIN)/pytest -m endurance tests/e2e

# The end-to-end tests of what differs between carriers: messages and statuses, bodies, cancellation, TLS, limits, the end.
CARRIER_TESTS := modes trailers command_tls command_serve command_drain held_requests requests_in_flight half_open_tls \
  hostile_streams grpc_clients budgets
e2e-grpcio: .venv/test
	EPP_TEST_TRANSPORT=grpcio $(BIN)/pytest $(PARALLEL) -m "not slow" $(CARRIER_TESTS:%=tests/e2e/test_%.py)

# The conformance of the HTTP/2 server; without Go, says how to get it, and fails only where CI is set.
h2spec: .venv/test
	@$(BIN)/python -m tests.h2spec.build_h2spec
	$(BIN)/pytest tests/h2spec

# At the HTTP/2 server two million frames; at sessions, bodies, pages of model servers and configurations as many inputs
# as take some minutes: drawn at random, then chosen by coverage. What coverage finds is kept in .venv/fuzz.
fuzz: .venv/fuzz
	$(BIN)/python -m perf.fuzz.fuzz_http2
	$(BIN)/python -m perf.fuzz.fuzz_http2 --coverage .venv/fuzz/http2
	$(BIN)/python -m perf.fuzz.fuzz_inputs session --runs 50000
	$(BIN)/python -m perf.fuzz.fuzz_inputs session --runs 50000 --coverage .venv/fuzz/session
	$(BIN)/python -m perf.fuzz.fuzz_inputs bodies --runs 100000
	$(BIN)/python -m perf.fuzz.fuzz_inputs bodies --runs 200000 --coverage .venv/fuzz/bodies
	$(BIN)/python -m perf.fuzz.fuzz_inputs exposition --runs 100000
	$(BIN)/python -m perf.fuzz.fuzz_inputs exposition --runs 200000 --coverage .venv/fuzz/exposition
	$(BIN)/python -m perf.fuzz.fuzz_inputs config --runs 5000
	$(BIN)/python -m perf.fuzz.fuzz_inputs config --runs 5000 --coverage .venv/fuzz/config

# dist/sbom.cdx.json, the packages of an installation with versions, hashes and licences; fails for a licence that is not
# allowed, and for what bandit finds beyond ruff.
supply: .venv/supply
	$(BIN)/python tools/supply.py
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive epp scorers
	$(BIN)/deptry epp scorers/epp_scorers
	$(BIN)/pytest tests/supply

# What operators look at: the admin page in a real browser, dashboards and alert rules in a real Prometheus. Installs both
# with apt-get where they are missing; where that is not possible, says so, and fails only where CI is set.
operator: .venv/operator
	$(BIN)/python -m tests.operator.operator_tools
	$(BIN)/pytest tests/operator

# Writes all generated references and files anew; a test names those that are out of date.
docs: .venv/test
	$(BIN)/python tools/generate.py

# The documents as a site, in dist/site; fails for a page, link or anchor that does not exist.
site: .venv/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes deploy/manifests/ anew from the chart; needs Helm.
manifests: .venv/test
	$(BIN)/python tools/manifests.py

# CPU time and memory, in less than ten minutes, into perf/bench/bench.json; then `make docs`. For flags: make bench ARGS=--help
bench: .venv/test
	$(BIN)/python -m perf.bench.run $(ARGS)

# Three times as many requests as simulated servers can serve, for five minutes, behind a real Envoy: who waits, who is
# refused, how long, and a table, in seven minutes. Shorter: make overload ARGS=60
overload: .venv/test
	$(BIN)/python -m perf.overload.run $(ARGS)

# The same in less than a minute; judges only what no busy machine can spoil.
overload-ci: .venv/test
	$(BIN)/python -m perf.overload.run 25 --calibration 4 --any-machine

# Every attack and every mishap that is known, at a real picker: a table of figures with targets and verdicts, in about an
# hour. It wants a machine that does nothing else. One row: make hostile ARGS="--only rapid-resets"
HOSTILE := $(BIN)/python -m perf.hostile.run
hostile: .venv/test
	$(HOSTILE) $(ARGS)

# The same in five minutes: fewer of everything, and times are judged widely.
hostile-ci: .venv/test
	$(HOSTILE) --size ci $(ARGS)

# Half an hour of load, reloads, endpoints that come and go or die, and clients that leave: is anything left over?
soak: .venv/test
	$(HOSTILE) --only soak $(ARGS)

# Waiting times and dollars of all ready-made profiles on simulated fleets: a table, in about half an hour. With
# ARGS="--real --loads 0.7 --fleets mixed --workloads conversations", behind a real Envoy. For flags: ARGS=--help
bench-profiles: .venv/test
	$(BIN)/python -m perf.bench.run_profiles $(ARGS)

# The profile `adaptive` beside all others on six equal servers, by workload: a table with intervals, in half an hour. Shorter:
# ARGS="--workloads chats --seeds 1". For flags: ARGS=--help
bench-workloads: .venv/test
	$(BIN)/python -m perf.bench.run_workloads $(ARGS)

# Pickers of one and two workers behind an Envoy with two threads: CPU time of a request, requests a second, and what fails
# as a worker is killed. More workers: ARGS="--workers 1,2,4".
bench-scale: .venv/test
	$(BIN)/python -m perf.bench.run_scale $(ARGS)

# How far it scales on paper: measures what a request, a poll and a batch of shared state cost, and prints the load on each
# part and which is full first. Wants redis-server. Larger: ARGS="--endpoints 10000 --pickers 50 --rate 100000".
bench-paper: .venv/test
	$(BIN)/python -m perf.bench.run_paper $(ARGS)

# Several pickers in virtual time, by number and staleness, and by way of picking: time to first token relative to one picker.
bench-herding: .venv/test
	$(BIN)/python -m perf.bench.run_herding $(ARGS)

# What requests notice of a failing shared state, and cache hits while pickers are replaced; ten minutes, with redis-server.
bench-shared: .venv/test
	$(BIN)/python -m perf.bench.run_shared $(ARGS)

# The chart and the table at the top of README.md: four profiles on two fleets, in a minute.
bench-chart: .venv/test
	$(BIN)/python -m perf.bench.run_profiles --samples adaptive,llm-d-default,least-loaded,round-robin \
	  --fleets mixed,equal --workloads conversations --loads 0.7 --seeds 3 --json perf/bench/profiles.json
	$(BIN)/python tools/generate.py

# Traces in real time, behind a real Envoy and in front of simulated servers, and in `epp replay`: a table of differences, in
# six minutes; exits with 1 if one is over its limit. One of them: make replay-proof ARGS="--only code"
replay-proof: .venv/test
	$(BIN)/python -m perf.fidelity.run $(ARGS)

# Records the picture at the top of README.md.
picture: .venv/test
	$(BIN)/python tools/record_demo.py

# On a real Kubernetes API server for each process, which is built once; without Go, says how to get it, and fails only where
# CI is set.
test-kube: kube-assets
	$(BIN)/pytest $(IN_TWO) tests/kube

kube-assets: .venv/test
	@$(BIN)/python -m tests.kube.build_assets

# Behind control planes of gateways that others wrote, which Go builds once (half an hour): their objects, their Envoy
# configuration. In a network namespace of its own, where each pod has an address; makes one with unshare and ip, as root.
test-gateways: kube-assets gateway-assets
	unshare --net sh -c 'ip link set lo up && ip address add 10.8.0.1/16 dev lo && exec $(BIN)/pytest tests/gateways'

gateway-assets: .venv/test
	@$(BIN)/python -m tests.gateways.build_assets

# Pickers that share their state, or an index of KV caches, through a genuine Redis. Installs it with apt-get where it is missing; where
# that is not possible, says so, and fails only where CI is set.
test-redis: .venv/test
	$(BIN)/python -m tests.shared_index.install_server
	$(BIN)/pytest $(IN_TWO) tests/shared_index tests/shared_state \
	  tests/e2e/test_documents.py::test_two_pickers_share_what_they_know

# Two genuine servers of llama.cpp behind the gateway: g++ builds the server once (a quarter of an hour), and a model of random
# weights is made. Installs cmake and ninja with apt-get where they are missing.
test-engines: engine-assets
	$(BIN)/pytest tests/engines

engine-assets: .venv/test
	@$(BIN)/python -m tests.engines.llama_server

# Two genuine vLLM servers behind the gateway: make test-vllm VLLM=path/to/venv
test-vllm: .venv/test
	$(BIN)/pytest -c pyproject.toml --rootdir . tests/vllm --vllm $(abspath $(VLLM))

# Two genuine vLLM servers of unequal speed: calibrates them, and compares replays of a trace with real time, in ten
# minutes. It wants a machine that does nothing else: make tuning-vllm VLLM=path/to/venv
tuning-vllm: .venv/test
	$(BIN)/python -m perf.vllm.tuning $(abspath $(VLLM)) $(ARGS)

.venv/bin/python:
	@echo "creating .venv with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv .venv

.venv/run: .lock/run.txt pyproject.toml tools/index_readme.py proto/build.py proto/ext_proc.proto | .venv/bin/python
	$(call install,installing $$(grep -c == .lock/run.txt) packages into .venv ...,--require-hashes -r .lock/run.txt)
	$(call install,building inference-epp ...,--no-deps --no-build-isolation -e .)
	@touch $@

.venv/test: .lock/test.txt .venv/run .venv/protocol
	$(call install,installing the $$(grep -c == .lock/test.txt) packages of the tests into .venv ...,--require-hashes -r .lock/test.txt)
	@touch $@

.venv/protocol: .lock/protocol.txt | .venv/bin/python
	$(call install,installing $$(grep -c == .lock/protocol.txt) package with the full protocol into .venv/protocol ...,--require-hashes --no-deps --upgrade --target .venv/protocol -r .lock/protocol.txt)
	@touch $@

.venv/fuzz: .lock/fuzz.txt .venv/test
	$(call install,installing $$(grep -c == .lock/fuzz.txt) package of the fuzzer into .venv ...,--require-hashes -r .lock/fuzz.txt)
	@mkdir -p $@ && touch $@

.venv/supply: .lock/supply.txt .venv/test
	$(call install,installing the $$(grep -c == .lock/supply.txt) packages of the supply checks into .venv ...,--require-hashes -r .lock/supply.txt)
	@touch $@

.venv/operator: .lock/operator.txt .venv/test
	$(call install,installing $$(grep -c == .lock/operator.txt) packages that drive a browser into .venv ...,--require-hashes -r .lock/operator.txt)
	@touch $@

.venv/site: .lock/site.txt .venv/test
	$(call install,installing the $$(grep -c == .lock/site.txt) packages of the site into .venv ...,--require-hashes -r .lock/site.txt)
	@touch $@

# Resolves the lower bounds of pyproject.toml into exact versions with hashes.
lock: .venv/bin/python
	$(PIP) install --quiet uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra gateway --group build -o .lock/run.txt pyproject.toml
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra test -c .lock/run.txt -o .lock/test.txt pyproject.toml
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:build -c .lock/run.txt -o .lock/build.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:fuzz -c .lock/test.txt -o .lock/fuzz.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:supply -c .lock/test.txt -o .lock/supply.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:operator -c .lock/test.txt -o .lock/operator.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:site -c .lock/test.txt -o .lock/site.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-deps \
	  --group pyproject.toml:protocol -c .lock/test.txt -o .lock/protocol.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra cel --extra kubernetes --extra redis --extra tokenizers --extra tracing -c .lock/test.txt -o .lock/image.txt pyproject.toml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
