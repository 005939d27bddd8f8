// The tab: which graph of the log is shown, and the address that leads to it.

import {make} from "./elements.js";
import {follow, start, wait} from "./main.js";

const RELOAD_MS = 10000;
const PREFIX = "p.tbscope.";

const shown = {graphs: [], run: null, tag: "", step: null};
const filter = make("input", {type: "search", placeholder: "regex", "aria-label": "Filter runs by a regular expression"});
const runs = make("select", {"aria-label": "Run"});
const tags = make("select", {"aria-label": "Tag"});
const steps = make("select", {"aria-label": "Step"});
const state = make("span", {role: "status"});

/** Shows the bar, and the graph that the address names, or the first one. */
export async function open() {
  const bar = make("div", {id: "graphs"},
    make("label", {}, "Runs", filter), make("label", {}, "Run", runs),
    make("label", {}, "Tag", tags), make("label", {}, "Step", steps), state);
  document.body.prepend(bar);
  filter.addEventListener("input", listRuns);
  runs.addEventListener("change", () => choose({run: runs.value}));
  tags.addEventListener("change", () => choose({run: shown.run, tag: tags.value}));
  steps.addEventListener("change", () => choose({run: shown.run, tag: shown.tag, step: steps.value}));
  followTheme();
  await reload();
  const {run, tag, step} = addressed();
  await choose({run, tag, step});
  setInterval(() => { if (!document.hidden) reload(); }, RELOAD_MS);
  window.parent.addEventListener("hashchange", () => {
    const asked = addressed();
    if (asked.run !== shown.run || asked.tag !== shown.tag) choose(asked);
    else follow();
  });
}

// -- what there is --------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path);
  const told = await answer.json().catch(() => ({error: `TensorBoard answered with status ${answer.status}`}));
  if (told.error) throw new Error(told.error);
  return told;
}

async function reload() {
  const found = await wait(ask("graphs"));
  if (!found) return;
  const before = JSON.stringify(shown.graphs);
  shown.graphs = found.graphs;
  if (JSON.stringify(found.graphs) === before) return;
  listRuns();
  listTags();
  if (shown.run === null && before !== "[]") choose({});
}

function listRuns() {
  let pattern = null;
  try { pattern = new RegExp(filter.value); } catch { /* It is not finished. */ }
  filter.setCustomValidity(pattern ? "" : "no regular expression");
  if (!pattern) return;
  const names = [...new Set(shown.graphs.map(({run}) => run))].filter((run) => pattern.test(run));
  fill(runs, names.map((run) => [run, run]), shown.run);
  const all = new Set(shown.graphs.map(({run}) => run)).size;
  state.textContent = `${names.length === all ? all : `${names.length} of ${all}`} ${all === 1 ? "run" : "runs"}`;
}

function listTags() {
  const own = shown.graphs.filter(({run}) => run === shown.run);
  fill(tags, own.map(({tag}) => [tag, tag.trimEnd() || "Default"]), shown.tag);
  const {steps: known, times} = own.find(({tag}) => tag === shown.tag) || {steps: [], times: []};
  const rows = known.map((step, at) => [String(step), `${step} · ${new Date(times[at] * 1000).toLocaleString()}`]);
  fill(steps, rows.reverse(), shown.step === null ? undefined : String(shown.step));
  steps.parentElement.hidden = rows.length < 2;
}

function fill(select, rows, chosen) {
  select.replaceChildren(...rows.map(([value, text]) => make("option", {value}, text)));
  select.value = rows.some(([value]) => value === chosen) ? chosen : rows.length ? rows[0][0] : "";
}

// -- what is shown --------------------------------------------------------------------------

/** Shows a graph: the one that is named, as far as there is such a one. */
async function choose({run, tag, step}) {
  const {graphs} = shown;
  const named = graphs.filter((one) => one.run === run);
  const own = named.length ? named : graphs.slice(0, 1);
  const graph = own.find((one) => one.tag === tag) || own[0];
  if (!graph) {
    document.getElementById("title").textContent = "The log has no graph yet.";
    return;
  }
  const known = graph.steps.map(String).includes(String(step));
  Object.assign(shown, {run: graph.run, tag: graph.tag, step: known ? Number(step) : null});
  listRuns();
  listTags();
  const place = new URLSearchParams({run: shown.run, tag: shown.tag});
  if (shown.step !== null) place.set("step", String(shown.step));
  const get = (kind, number) => ask(`${kind}?${place}${number === undefined ? "" : `&number=${number}`}`);
  await wait(start({
    head: () => get("head"), level: (number) => get("level", number),
    card: (number) => get("card", number), index: () => get("index"),
  }, {read: () => addressed().node || "", write: writeAddress}));
}

// -- the address ----------------------------------------------------------------------------

/** Returns what the address of TensorBoard's page says of this tab. */
function addressed() {
  const found = {};
  for (const part of window.parent.location.hash.slice(1).split("&")) {
    const [key, value] = part.split("=");
    if (key.startsWith(PREFIX) && value !== undefined) found[key.slice(PREFIX.length)] = decodeURIComponent(value);
  }
  return found;
}

function writeAddress(node) {
  const others = window.parent.location.hash.slice(1).split("&").filter((part) => !part.startsWith(PREFIX));
  const told = {run: shown.run, tag: shown.tag, step: shown.step === null ? "" : String(shown.step), node};
  const own = Object.entries(told).filter(([, value]) => value)
    .map(([key, value]) => `${PREFIX}${key}=${encodeURIComponent(value)}`);
  window.parent.history.replaceState(window.parent.history.state, "", `#${[...others, ...own].join("&")}`);
}

// -- TensorBoard's dark mode ----------------------------------------------------------------

function followTheme() {
  const body = window.parent.document.body;
  const take = () => { document.documentElement.dataset.theme = body.classList.contains("dark-mode") ? "dark" : "light"; };
  new MutationObserver(take).observe(body, {attributes: true, attributeFilter: ["class"]});
  take();
}
