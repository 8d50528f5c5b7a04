// The live view: asks for what is new once a second, and shows it. Every word from elsewhere is set as text.
"use strict";
const at = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const EVERY_MS = 1000;
const known = { run: null, every: null, points: null, objectives: [], receivedAt: null };

const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const count = (n) => Math.round(n).toLocaleString("en-US");
const rate = (n) => (n < 10 ? n.toFixed(1) : count(n)) + "/s";
const share = (part, whole) => {
  const text = whole ? (100 * part / whole).toFixed(1) + "%" : "0.0%";
  return part > 0 && text === "0.0%" ? "<0.1%" : part < whole && text === "100.0%" ? ">99.9%" : text;
};
const ms = (n) => n === null ? "–" : (n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : count(n)) + " ms";
const seconds = (s) => s < 10 ? s.toFixed(1) + " s" : count(s) + " s";
const clock = (s) => {
  const whole = Math.max(0, Math.floor(s)), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return (hours ? hours + ":" + two(minutes) : minutes) + ":" + two(whole % 60);
};

// --- figures --------------------------------------------------------------------------------------------------

const latency = (name, fewest) => (data) => {
  const window_s = data.windows_s[name];
  return [ms(data.now[name]), window_s ? `last ${window_s} s, since ${data.run.begin}` : `fewer than ${fewest} in 60 s`];
};
const TILES = [
  ["TTFT p50", latency("ttft_p50_ms", 6)],
  ["TTFT p95", latency("ttft_p95_ms", 60)],
  ["Total p50", latency("e2e_p50_ms", 6)],
  ["Total p95", latency("e2e_p95_ms", 60)],
  ["Output tokens", (data) => [rate(data.now.per_s.output_tokens ?? 0), `${count(data.now.output_tokens)} tokens`]],
  ["In flight", (data) => [count(data.now.in_flight), "requests sent and not ended"]],
  ["Waiting", (data) => [count(data.now.waiting), data.now.waiting
    ? `for one of ${count(data.run.slots)} slots, the first for ${seconds(data.now.slot_wait_s)}`
    : `for one of ${count(data.run.slots)} slots`], "waiting", (data) => data.run.slots !== null],
  ["Sent", (data) => [count(data.now.sent), `${rate(data.now.per_s.sent ?? 0)} requests`]],
  ["Dropped", (data) => [count(data.now.dropped), "by the client at its in-flight cap"], "dropped", (data) => data.run.slots === null],
  ["Failed", (data) => [count(data.now.failed), `${share(data.now.failed, data.now.sent)} of requests sent`], "failed"],
  ["429s", (data) => [count(data.now.limited), `${share(data.now.limited, data.now.attempts)} of attempts`], "limited"],
];

function make(name, parent, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

const tiles = TILES.map(([title, figure, amiss, isKnown]) => {
  const box = make("div", at("tiles"));
  box.className = "tile";
  make("dt", box, title);
  const value = make("dd", box), number = make("span", value), about = make("small", value);
  return { box, figure, amiss, isKnown, number, about };
});

function showTiles(data) {
  for (const { box, figure, amiss, isKnown, number, about } of tiles) {
    box.hidden = isKnown !== undefined && !isKnown(data);
    if (box.hidden) continue;
    const [value, unit] = figure(data);
    put(number, value);
    put(about, unit);
    box.classList.toggle("amiss", Boolean(amiss && data.now[amiss]));
  }
}

function showRun(run, now) {
  const missed = run.objectives.filter((one) => one.state === "missed").length;
  document.title = `${missed ? `${missed} missed` : run.state} · ${run.scenario} · Tailgauge`;
  put(at("scenario"), run.scenario);
  put(at("about"), `${run.run_id} · ${run.targets.join(", ")}`);
  put(at("state"), run.state.replaceAll("_", " "));
  at("state").className = `tag ${run.state}`;
  const [planned, passed] = [run.duration_s, Math.min(now.at_s, run.duration_s ?? Infinity)];
  put(at("time"), planned === null ? clock(passed) : `${clock(passed)} of ${clock(planned)}`);
  at("bar").hidden = planned === null;
  at("bar").value = Math.min(1, passed / (planned ?? 1));
  put(at("word"), run.verdict ?? "No verdict yet");
  at("so-far").hidden = run.verdict === null;
  put(at("reason"), run.verdict ? run.reason : run.notes.at(-1) ?? "");
  at("verdict").className = `banner ${run.verdict ?? ""}`;
  for (const id of ["state", "clock", "run"]) at(id).hidden = false;
}

// Locust names a worker after its host and 32 random digits: eight of them tell it from others.
const short = (name) => name.replace(/_([0-9a-f]{8})[0-9a-f]{24}$/, "_$1");
const WORKER = [
  (w) => w.name === String(w.worker) ? w.name : `${w.worker} · ${short(w.name)}`,
  (w) => w.host,
  (w) => w.state,
  (w) => count(w.sent),
  (w) => count(w.in_flight),
  (w) => w.cpu === null ? "–" : Math.round(100 * w.cpu) + "%",
  (w) => w.clock_error_ms === null ? "unknown" : w.clock_error_ms === 0 ? "0, same clock" : "±" + w.clock_error_ms.toFixed(3) + " ms",
  (w) => w.silent_s < 2 ? "now" : w.silent_s.toFixed(0) + " s ago",
];
const AMISS = {
  2: (w) => ["lost", "failed"].includes(w.state), 5: (w) => w.cpu >= 0.9, 7: (w) => w.state === "running" && w.silent_s >= 2,
};

function showWorkers(data) {
  const body = at("workers");
  while (body.rows.length > data.workers.length) body.deleteRow(-1);
  data.workers.forEach((worker, i) => {
    const row = body.rows[i] ?? body.insertRow();
    WORKER.forEach((text, column) => {
      const cell = row.cells[column] ?? row.insertCell();
      put(cell, text(worker));
      cell.className = column > 2 ? "num" : "";
      cell.classList.toggle("amiss", Boolean(AMISS[column]?.(worker)));
    });
  });
  const left = data.workers_total - data.workers.length;
  at("workers-left").hidden = !left;
  put(at("workers-left"), `${count(left)} more, all of them at work and less busy than these.`);
}

function showObjectives(objectives) {
  const list = at("objectives");
  const states = new Set(objectives.map((one) => one.state));
  at("objectives-box").hidden = !objectives.length;
  at("objectives-box").className = `objectives-box ${states.has("missed") ? "missed" : states.size === 1 ? [...states][0] : ""}`;
  while (list.children.length > objectives.length) list.lastChild.remove();
  objectives.forEach((one, i) => {
    const row = list.children[i] ?? make("li", list);
    const state = row.children[0] ?? make("b", row), text = row.children[1] ?? make("span", row);
    row.className = one.state;
    put(state, one.state);
    put(text, `${one.label} ${one.value ? one.value + ", objective " : ""}${one.bound_text}`);
  });
}

function showNotes(notes) {
  const list = at("notes");
  at("notes-box").hidden = !notes.length;
  while (list.children.length > notes.length) list.lastChild.remove();
  notes.forEach((note, i) => put(list.children[i] ?? make("li", list), note));
}

// --- charts ---------------------------------------------------------------------------------------------------

const CHARTS = {
  requests: [["not failed", "well_per_s", "--good-area", "1/s"], ["failed", "failed_per_s", "--red", "1/s"],
    ["sent", "sent_per_s", "--muted", "1/s"], ["429s", "limited_per_s", "--orange", "1/s"]],
  ttft: [["p99", "ttft_p99_ms", "--red", "ms"], ["maximum", "ttft_max_ms", "--muted", "ms"],
    ["p95", "ttft_p95_ms", "--orange", "ms"], ["p50", "ttft_p50_ms", "--blue", "ms"]],
  e2e: [["p95", "e2e_p95_ms", "--orange", "ms"], ["p50", "e2e_p50_ms", "--blue", "ms"]],
  tokens: [["tokens", "output_tokens_per_s", "--green", "1/s"]],
  flight: [["in flight", "in_flight", "--purple", "requests"], ["waiting for a slot", "waiting", "--orange", "requests"]],
};

// Columns that are made of others: the maximum stands where too few requests make no p99.
const MADE = {
  ttft_max_ms: (points) => points.ttft_max_ms.map((value, i) => points.ttft_p99_ms[i] === null ? value : null),
  well_per_s: (points) => points.ended_per_s.map((value, i) => Math.max(0, value - points.failed_per_s[i])),
};
const values = (column) => MADE[column]?.(known.points) ?? known.points[column];
const STACKED = ["well_per_s", "failed_per_s"];
const IF_ANY = ["failed_per_s", "limited_per_s", "waiting"];
const isShown = (column) => !IF_ANY.includes(column) || known.points[column].some((value) => value > 0);

// The times in which a worker was late, those that overlap as one.
function stalls() {
  const { at_s, stalled_s } = known.points;
  const spans = [];
  at_s.forEach((to, i) => {
    if (!stalled_s[i]) return;
    const from = Math.max(0, Math.min(at_s[i - 1] ?? 0, to - stalled_s[i])), before = spans.at(-1);
    if (before && from <= before[1]) before[1] = to; else spans.push([from, to]);
  });
  return spans;
}

// The objectives whose bound a figure shows: one that is far from everything measured would flatten the lines.
const bounds = (id) => known.objectives.filter((one) => one.sketch === id
  && one.bound < 5 * Math.max(...CHARTS[id].flatMap(([, column]) => values(column).map((value) => value ?? 0))));

function draw() {
  if (known.points === null || document.hidden) return;
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const font = getComputedStyle(document.body).fontFamily;
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), fixedrange: true };
  const last = known.points.at_s.at(-1) ?? 0;
  const late = stalls();
  for (const [id, lines] of Object.entries(CHARTS)) {
    const traces = lines.filter(([, column]) => isShown(column)).map(([name, column, tone, unit]) => ({
      name, x: known.points.at_s, y: values(column), type: "scatter", mode: "lines",
      line: { color: colour(tone), width: 1.8, dash: column === "sent_per_s" ? "dot" : "solid" },
      hovertemplate: `%{y:,.4~g} ${unit === "1/s" ? "per s" : unit}`,
      ...(STACKED.includes(column) ? { stackgroup: "ended", fillcolor: colour(tone), line: { color: colour(tone), width: 0 } } : {}),
    }));
    if (late.length) traces.push({ name: "client stalled", x: [null], y: [null], type: "scatter", mode: "markers",
      marker: { symbol: "square", size: 11, color: colour("--purple"), opacity: 0.4 } });
    Plotly.react(id, traces, {
      datarevision: `${known.run} ${last}`, // the columns grow in place, which Plotly does not notice
      margin: { l: 58, r: 12, t: 8, b: 38 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--muted"), size: 12, family: font }, hovermode: "x unified",
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text"), family: font } },
      showlegend: traces.length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      shapes: [
        ...late.map(([x0, x1]) => ({ type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, layer: "below",
          line: { width: 0 }, fillcolor: colour("--purple"), opacity: 0.22 })),
        ...bounds(id).map((one) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: one.bound, y1: one.bound,
          line: { color: colour(one.state === "missed" ? "--bad" : "--good"), width: 1.5, dash: "dash" } })),
      ],
      annotations: bounds(id).map((one) => ({ xref: "paper", x: 1, xanchor: "right", y: one.bound, yanchor: "bottom", showarrow: false,
        text: `${one.label} ${one.bound_text}`, font: { color: colour(one.state === "missed" ? "--bad" : "--good") } })),
      xaxis: { ...axis, range: [0, Math.max(30, last)], title: { text: "time since the start of the run (s)", standoff: 6 } },
      yaxis: { ...axis, rangemode: "tozero", title: { text: lines[0][3], standoff: 6 }, nticks: 6 },
    }, { displayModeBar: false, responsive: true });
  }
}

// --- once a second --------------------------------------------------------------------------------------------

function add(data) {
  if (known.run !== data.run.run_id || known.every !== data.every_s) known.points = null;
  known.run = data.run.run_id;
  known.every = data.every_s;
  if (known.points === null) { known.points = data.points; return; }
  const since = known.points.at_s.at(-1) ?? -1;
  const fresh = data.points.at_s.findIndex((s) => s > since);
  if (fresh >= 0) for (const [name, values] of Object.entries(data.points)) known.points[name].push(...values.slice(fresh));
}

function show(data) {
  known.receivedAt = new Date();
  at("stale").hidden = true;
  if (data.run === null) return;
  for (const place of document.querySelectorAll(".begin")) put(place, data.run.begin);
  add(data);
  showRun(data.run, data.now);
  showObjectives(data.run.objectives);
  known.objectives = data.run.objectives;
  showTiles(data);
  showWorkers(data);
  showNotes(data.run.notes);
  draw();
}

function fall_silent() {
  const since = known.receivedAt ? known.receivedAt.toLocaleTimeString() : "never";
  at("stale").hidden = false;
  put(at("stale"), `No data from the master since ${since}. The master ends after its last run. Then the report is written, and this page stays as it is.`);
}

async function ask() {
  const since = known.points?.at_s.at(-1) ?? -1;
  const query = new URLSearchParams({ run: known.run ?? "", every: known.every?.toFixed(1) ?? "", since });
  try {
    const answer = await fetch(`tailgauge/live.json?${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.json());
  } catch (error) {
    fall_silent();
    console.warn("no new data for the live view:", error);
  }
  setTimeout(ask, EVERY_MS);
}

dark.addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
ask();
