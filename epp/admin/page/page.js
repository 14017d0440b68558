// SPDX-License-Identifier: Apache-2.0
// The page of the admin port. Names come from clients and clusters, so text is only inserted as text nodes.

const POLL_MS = 1000;
const MOST_SHOWN = 100;
const PAGE = 50;
const IDLE_POLL_MS = 10000;
const IDLE_SHOWN = 20;
const COLOURS = 8;
const TOKEN_KEY = "epp-token";

const $ = (id) => document.getElementById(id);

/** Create an element with attributes and children; functions among the attributes are event listeners. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "width") element.style.width = value;
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const known = (value) => value !== undefined && value !== null;
const rounded = (value, digits = 2) => (known(value) ? Number(value).toFixed(digits) : "–");
const share = (value) => (known(value) ? `${Math.round(value * 100)} %` : "–");
const seconds = (value) => (known(value) ? (value < 1 ? `${rounded(value * 1000, 1)} ms` : `${rounded(value)} s`) : "–");
const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

// --- requests -------------------------------------------------------------------------------------------------------

class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? `status ${status}`);
    this.status = status;
    this.type = error?.type ?? "";
  }
}

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store" });
  const content = await answer.json().catch(() => ({}));
  if (answer.status === 401) $("token-form").hidden = false;
  if (!answer.ok) throw new Refusal(answer.status, content.error);
  return content;
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, $("token").value);
  $("token").value = "";
  $("token-form").hidden = true;
  refresh();
});

// --- the pool -------------------------------------------------------------------------------------------------------

/** Numbers of picks in the last minute: [milliseconds, picks by endpoint]. */
const history = [];

function perMinute(id, picks) {
  const [at, before] = history[0];
  const minutes = (performance.now() - at) / 60000;
  return minutes > 0 && id in before ? Math.max(0, picks - before[id]) / minutes : undefined;
}

function remember(endpoints) {
  const now = performance.now();
  history.push([now, Object.fromEntries(endpoints.map((each) => [each.id, each.picks]))]);
  while (history.length > 1 && now - history[0][0] > 60000) history.shift();
}

function endpointRow(each) {
  const { load, accelerator } = each;
  const gauge = h("span", { class: "gauge", "aria-hidden": "true" }, h("i", { width: `${100 * (load.kvUsage ?? 0)}%` }));
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, each.name, " ", h("small", { class: "note" }, each.address)),
    h("td", {}, accelerator.class || accelerator.model || "–"),
    h("td", { class: "number", "data-head": "$ per hour" }, rounded(accelerator.costPerHour)),
    h("td", { class: "number", "data-head": "Waiting" }, rounded(load.waiting, 0)),
    h("td", { class: "number", "data-head": "Running" }, rounded(load.running, 0)),
    h("td", {}, gauge, " ", share(load.kvUsage)),
    h("td", { class: "number", "data-head": "In flight" }, rounded(load.inFlight, 0)),
    h("td", { class: "number", "data-head": "Picks per minute" }, rounded(perMinute(each.id, each.picks), 0)),
    h("td", { class: each.available ? "" : "bad", title: each.remedy ?? "" }, each.available ? each.why || "used" : each.why || "not used"),
  );
}

let offset = 0;

async function refreshPool() {
  const filter = $("pool-filter").value.trim();
  const found = await ask(`api/endpoints?limit=${PAGE}&offset=${offset}&filter=${encodeURIComponent(filter)}`);
  if (offset && offset >= found.matching) {
    offset = 0;
    return refreshPool();
  }
  $("pool-name").textContent = found.pool ?? "";
  remember(found.endpoints);
  $("pool").tBodies[0].replaceChildren(...found.endpoints.map(endpointRow));
  const matching = filter ? `, ${found.matching} with "${filter}"` : "";
  const attention = found.needAttention ? `; ${found.needAttention} need attention and come first` : "";
  $("pool-note").textContent = found.total
    ? `${many(found.total, "endpoint")}, ${found.available} used${matching}${attention}`
    : "The pool has no endpoints.";
  const last = offset + found.endpoints.length;
  $("pool-pages").hidden = found.matching <= PAGE;
  $("pool-range").textContent = `${offset + 1} to ${last} of ${found.matching}`;
  $("pool-before").disabled = !offset;
  $("pool-after").disabled = last >= found.matching;
}

function turnPage(step) {
  offset = Math.max(0, offset + step * PAGE);
  refresh();
}

$("pool-before").addEventListener("click", () => turnPage(-1));
$("pool-after").addEventListener("click", () => turnPage(1));
$("pool-filter").addEventListener("input", () => {
  offset = 0;
  refresh();
});

// --- idle accelerators ------------------------------------------------------------------------------------------------

let idleAt = -Infinity;

/** Show nodes with free devices and without an endpoint; updates every ten seconds. */
async function refreshIdle() {
  if (performance.now() - idleAt < IDLE_POLL_MS) return;
  const found = await ask(`api/idle-nodes?limit=${IDLE_SHOWN}`);
  idleAt = performance.now();
  const free = found.nodes.filter((each) => each.free);
  $("idle").hidden = !free.length;
  const unpriced = found.withoutPrice ? `, without the price of ${many(found.withoutPrice, "node")}` : "";
  const unseen = found.unseenPods ? `; some may be in use: ${found.unseenPods}` : "";
  const nodes = found.total > found.nodes.length ? `, the first ${free.length} nodes` : "";
  $("idle-note").textContent = `${many(found.freeDevices, "free device")} on nodes without an endpoint: $${rounded(found.dollarsPerHour)} per hour${unpriced}${nodes}${unseen}.`;
  $("idle-nodes").tBodies[0].replaceChildren(...free.map((each) => h(
    "tr",
    {},
    h("th", { scope: "row" }, each.node),
    h("td", {}, each.accelerator || "–"),
    h("td", { class: "number" }, each.free),
    h("td", { class: "number" }, each.devices),
    h("td", { class: "number" }, rounded(each.dollarsPerHour)),
  )));
}

// --- the stream of decisions ------------------------------------------------------------------------------------------

const decisions = new Map();
let chosen = "";
let paused = false;

function summary(record) {
  const ended = record.ending ? record.ending.status || record.ending.cause : record.failure ? record.failure.status : "under way";
  const where = record.pick?.endpoint ?? record.failure?.code ?? "";
  return [
    h("time", { datetime: record.at }, record.at.slice(11, 19)), " ",
    h("b", {}, where), " ", h("small", {}, `${record.asked.model || record.asked.path} · ${ended}`),
    h("br"), h("small", {}, record.why),
  ];
}

function item(record) {
  return h(
    "li",
    { role: "option", id: `decision-${record.id}`, "data-id": record.id, "aria-selected": String(record.id === chosen),
      click: () => choose(record.id) },
    summary(record),
  );
}

function choose(id) {
  chosen = id;
  for (const each of $("decisions").children) each.setAttribute("aria-selected", String(each.dataset.id === id));
  $("decisions").setAttribute("aria-activedescendant", `decision-${id}`);
  $(`decision-${id}`)?.scrollIntoView({ block: "nearest" });
  const record = decisions.get(id);
  if (record) show(record);
}

$("decisions").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  const ids = [...decisions.keys()];
  if (!ids.length) return;
  event.preventDefault();
  const at = ids.indexOf(chosen);
  choose(ids[Math.max(0, Math.min(ids.length - 1, at < 0 ? 0 : at + step))]);
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Resume" : "Pause";
});

async function refreshDecisions() {
  if (paused) return;
  const found = await ask(`api/decisions?limit=${MOST_SHOWN}`);
  const before = decisions.get(chosen);
  decisions.clear();
  for (const record of found.decisions) decisions.set(record.id, record);
  $("decisions").replaceChildren(...found.decisions.map(item));
  $("decisions-note").textContent = found.decisions.length
    ? many(found.decisions.length, "decision")
    : "No decision is recorded yet: --decision-sample-rate sets the share of successful requests to record.";
  suggestModel(found.decisions[0]?.asked.model);
  const now = decisions.get(chosen);
  if (now && JSON.stringify(now) !== JSON.stringify(before)) show(now);
}

// --- one decision -----------------------------------------------------------------------------------------------------

const fact = (name, value) => (known(value) && value !== "" ? [h("dt", {}, name), h("dd", {}, String(value))] : []);

function facts(record) {
  const { asked, pick, ending, timings = {}, seen, failure } = record;
  const money = known(pick?.costPerHour) ? `, $${rounded(pick.costPerHour)} per hour` : "";
  return h(
    "dl",
    { class: "facts" },
    fact("Request", record.requestId),
    fact("Model", asked.targetModel ? `${asked.model} → ${asked.targetModel}` : asked.model),
    fact("Objective", asked.objective),
    fact("Priority", asked.priority),
    fact("Tenant", asked.tenant || asked.fairnessId),
    fact("Picked", pick && `${pick.endpoint} (${pick.address})`),
    fact("Accelerator", pick && (pick.accelerator || "unknown") + money),
    fact("Prompt cached", known(pick?.cachedShare) ? share(pick.cachedShare) : undefined),
    fact("Fallbacks", pick?.fallbacks?.join(", ")),
    fact("Refused", failure && `${failure.status} ${failure.message}`),
    fact("For operators", failure?.detail),
    fact("Outcome", ending && `${ending.status || ""} ${ending.cause}`.trim()),
    fact("Served by", ending?.isFallback ? `${ending.servedEndpoint}, a fallback` : ""),
    fact("Queued", timings.queue ? seconds(timings.queue) : ""),
    fact("Scheduling", timings.scheduling ? seconds(timings.scheduling) : ""),
    fact("First byte", known(timings.firstByte) ? seconds(timings.firstByte) : ""),
    fact("Total time", known(timings.total) ? seconds(timings.total) : ""),
    fact("Snapshot", seen && `generation ${seen.generation ?? 0}, ${seconds(seen.ageSeconds ?? 0)} old`),
  );
}

function funnelRow(label, count, of) {
  const bar = h("div", { class: "bar", width: `${of ? (100 * count) / of : 0}%`, role: "img", "aria-label": `${count} of ${of}` });
  return [h("span", {}, label), h("div", {}, bar), h("span", { class: "number" }, count)];
}

function funnel(record, run) {
  const of = Math.max(record.seen?.endpoints ?? 0, run.considered ?? 0, 1);
  const rows = [];
  const first = run === record.profiles[0];
  if (first && record.seen) {
    rows.push(funnelRow("in the pool", record.seen.endpoints ?? 0, of), funnelRow("reachable", record.seen.available ?? 0, of));
    if (record.seen.eligible !== record.seen.available) rows.push(funnelRow("allowed by the gateway", record.seen.eligible ?? 0, of));
  }
  rows.push(funnelRow("considered", run.considered ?? 0, of));
  for (const step of run.filters ?? []) {
    rows.push(funnelRow(step.plugin, step.after, of));
    const dropped = step.dropped ?? [];
    if (step.problem) rows.push(h("small", { class: "bad wide" }, step.problem));
    if (dropped.length) {
      const lines = dropped.map((each) => h("div", {}, each.endpoint, each.reason ? `: ${each.reason}` : ""));
      const more = step.droppedMore ? h("div", {}, `and ${step.droppedMore} more`) : null;
      rows.push(h("details", {}, h("summary", {}, `dropped ${dropped.length + (step.droppedMore ?? 0)}`), lines, more));
    }
  }
  return h("div", { class: "funnel" }, rows.flat());
}

function stack(candidate, scorers, most) {
  const parts = (candidate.contributions ?? []).map((part, number) =>
    h("i", {
      class: `s${number % COLOURS}`,
      width: `${most > 0 ? (100 * Math.max(0, part)) / most : 0}%`,
      "data-contribution": part,
      title: `${scorers[number].plugin}: ${rounded(candidate.scores[number], 3)} × ${scorers[number].weight} = ${rounded(part, 3)}`,
    }),
  );
  const said = scorers.map((scorer, number) => `${scorer.plugin} ${rounded(candidate.contributions?.[number] ?? 0, 3)}`).join(", ");
  return h("div", { class: "stack", role: "img", "aria-label": said }, parts);
}

function scores(run) {
  const scorers = run.scorers ?? [];
  const candidates = run.candidates ?? [];
  const most = Math.max(scorers.reduce((sum, each) => sum + Math.max(0, each.weight), 0), ...candidates.map((each) => each.total), 1e-9);
  const legend = scorers.map((each, number) =>
    h("li", { title: each.zeroMeans ? `0: ${each.zeroMeans}` : "" }, h("i", { class: `s${number % COLOURS}` }), `${each.plugin} × ${each.weight}`,
      each.problem ? h("span", { class: "bad" }, ` ${each.problem}`) : null),
  );
  const rows = candidates.flatMap((each) => [
    h("span", { class: each.rank === 0 ? "picked" : "" }, each.endpoint, known(each.rank) ? (each.rank === 0 ? " ◄" : ` (fallback ${each.rank})`) : "",
      " ", h("small", { class: "note" }, each.accelerator ?? "")),
    stack(each, scorers, most),
    h("span", { class: "number", "data-total": each.total }, rounded(each.total, 3)),
  ]);
  return [
    h("ul", { class: "legend" }, legend),
    h("div", { class: "scores" }, rows),
    run.candidatesMore ? h("p", { class: "note" }, `and ${run.candidatesMore} more with lower scores`) : null,
  ];
}

function profile(record, run) {
  return [
    h("h3", {}, `Profile ${run.name}`, run.primary ? " (primary)" : "", run.picker ? ` · ${run.picker}` : ""),
    run.failure ? h("p", { class: "bad" }, `${run.failure.message} ${run.failure.detail ?? ""}`) : null,
    funnel(record, run),
    run.candidates?.length ? scores(run) : null,
  ];
}

function shadows(record) {
  if (!record.shadows?.length) return null;
  const rows = record.shadows.map((each) =>
    h("tr", {}, h("th", { scope: "row" }, each.profile),
      h("td", {}, each.problem || (each.agrees ? "agrees" : `would pick ${each.endpoint}`)),
      h("td", {}, each.accelerator ?? ""), h("td", { class: "number" }, known(each.costPerHour) ? `$${rounded(each.costPerHour)}` : "")),
  );
  return [h("h3", {}, "Shadow profiles"), h("table", {}, h("tbody", {}, rows))];
}

function show(record) {
  const open = new Set([...$("detail").querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  const parts = [
    h("p", {}, h("b", {}, record.kind === "simulated" ? "Simulated: " : ""), record.why ?? ""),
    facts(record),
    (record.profiles ?? []).map((run) => profile(record, run)),
    shadows(record),
    h("details", {}, h("summary", {}, "Record"), h("pre", { class: "scroll" }, JSON.stringify(record, null, 2))),
  ];
  $("detail").replaceChildren(...parts.flat(Infinity).filter(Boolean));
  for (const each of $("detail").querySelectorAll("details > summary")) each.parentElement.open = open.has(each.textContent);
}

// --- simulate -----------------------------------------------------------------------------------------------------------

function headersOf(text) {
  const found = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf(":", 1);
    if (at < 0) throw new Error(`"${line}" is not a header: write name: value`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

/** Set the model of the example body, unless the user has changed the body. */
function suggestModel(model) {
  const body = $("simulate").elements.body;
  if (model && body.value === body.defaultValue) {
    body.value = JSON.stringify({ ...JSON.parse(body.defaultValue), model });
    body.defaultValue = body.value;
  }
}

/** Show an error in red, each problem on its own line. */
function fail(message) {
  $("simulate-note").className = "bad";
  $("simulate-note").replaceChildren(...message.split(/\n|; (?=[^;]*:\d+:\d+: )/).flatMap((line) => [line, h("br")]));
}

/** Return a sentence if other candidates have the same score as the picked one, else an empty text. */
function tied(record) {
  const run = (record.profiles ?? []).find((each) => each.name === record.pick?.profile) ?? (record.profiles ?? [])[0];
  const totals = (run?.candidates ?? []).map((each) => each.total);
  const best = Math.max(...totals);
  const equal = totals.filter((total) => total === best).length;
  return equal > 1 ? ` It is a tie: ${equal} endpoints score ${rounded(best, 3)}; the one picked least recently goes first.` : "";
}

$("simulate").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("simulate-note").textContent = "";
  $("simulate-note").className = "note";
  chosen = "";
  $("detail").replaceChildren();
  const form = new FormData(event.target);
  const text = (name) => String(form.get(name)).trim();
  try {
    const asked = { path: text("path"), headers: headersOf(text("headers")), body: JSON.parse(text("body")) };
    if (text("objective")) asked.objective = text("objective");
    if (text("subset")) asked.candidateSubset = text("subset").split(/[\s,]+/);
    if (text("config")) asked.config = text("config");
    const found = await ask("api/simulate-schedule", asked);
    chosen = "";
    for (const each of $("decisions").children) each.setAttribute("aria-selected", "false");
    show(found);
    const waits = found.waits ? ` It would wait: ${found.waits}.` : "";
    const tie = tied(found);
    if (found.error) fail(`Refused: ${found.error.message}`);
    else $("simulate-note").textContent = `Would go to ${found.pick.endpoint}.${tie}${waits}`;
    $("detail-title").scrollIntoView({ block: "nearest" });
  } catch (error) {
    fail(error.message);
    $("simulate-note").scrollIntoView({ block: "nearest" });
  }
});

$("config-now").addEventListener("click", async () => {
  try {
    const found = await ask("api/config");
    $("simulate").elements.config.value = found.text ?? "";
  } catch (error) {
    fail(error.message);
  }
});

// --- polling ------------------------------------------------------------------------------------------------------------

async function refresh() {
  try {
    await Promise.all([refreshPool(), refreshIdle(), refreshDecisions()]);
    $("state").textContent = "live";
    $("state").className = "";
  } catch (error) {
    $("state").textContent = error instanceof Refusal ? error.message : "the picker does not answer";
    $("state").className = "bad";
  }
}

async function poll() {
  if (!document.hidden) await refresh();
  setTimeout(poll, POLL_MS);
}

poll();
