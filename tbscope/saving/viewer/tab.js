// The tab: which graph of the log is shown, and the address that leads to it.

import {comparing, listOthers, otherParts, takeOther} from "./compare.js";
import {brief, fill, make} from "./elements.js";
import {follow, relist, start, wait} from "./main.js";
import {decoded, encoded} from "./opened.js";

const RELOAD_MS = 10000;
const PREFIX = "p.tbscope.";

// The step is the one that was asked for, or null for the latest; the time is that of the graph on the screen.
const shown = {graphs: [], overlays: [], run: null, tag: "", step: null, time: null, kept: false};
const filter = make("input", {type: "search", placeholder: "regex", "aria-label": "Filter runs by a regular expression"});
const runs = make("select", {"aria-label": "Run"});
const tags = make("select", {"aria-label": "Tag"});
const steps = make("select", {"aria-label": "Step"});
const state = make("span", {role: "status"});
const news = make("button", {hidden: ""});

/** Shows the bar, and the graph that the address names, or the first one. */
async function open() {
  const bar = make("div", {id: "graphs"},
    make("label", {}, "Runs", filter), make("label", {}, "Run", runs),
    make("label", {}, "Tag", tags), make("label", {}, "Step", steps),
    comparing(() => change(shown)), make("span", {"aria-live": "polite"}, news), state);
  document.body.prepend(bar);
  filter.addEventListener("input", listRuns);
  runs.addEventListener("change", () => change({run: runs.value}));
  tags.addEventListener("change", () => change({run: shown.run, tag: tags.value}));
  steps.addEventListener("change", () => change({run: shown.run, tag: shown.tag, step: steps.value}));
  news.addEventListener("click", () => change({run: shown.run, tag: shown.tag}));
  followTheme();
  takeOther(addressed());
  await reload();
  await chooseGraph(addressed());
  setInterval(() => { if (!document.hidden) reload(); }, RELOAD_MS);
  onDataReloaded(reload);
  window.parent.addEventListener("hashchange", () => {
    const asked = addressed(), own = (step) => step === null ? undefined : String(step);
    if (!window.parent.location.hash.startsWith("#tbscope")) return;
    if (!takeOther(asked) && asked.run === shown.run && (asked.tag || "") === shown.tag && asked.step === own(shown.step)) follow();
    else chooseGraph(asked);
  });
}

/**
 * Calls back when TensorBoard's page has loaded its data anew: by its button, or every so often.
 *
 * Source: tensorboard/components/experimental/plugin_util/message.ts and plugin-guest.ts
 */
function onDataReloaded(act) {
  const {port1, port2} = new MessageChannel();
  port1.addEventListener("message", ({data}) => {
    const {type, id, isReply} = JSON.parse(data);
    if (isReply) return;
    if (type === "experimental.DataReloaded") act();
    port1.postMessage(JSON.stringify({type, id, payload: null, error: null, isReply: true}));
  });
  port1.start();
  window.parent.postMessage("experimental.bootstrap", window.parent.location.origin, [port2]);
}

// -- what there is --------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path), text = await answer.text();
  let told = null;
  // TensorBoard's own errors are no JSON.
  try { told = JSON.parse(text); } catch { told = {error: `TensorBoard answered with status ${answer.status}: ${brief(text, 300)}`}; }
  if (told.error) throw new Error(told.error);
  return told;
}

async function wholePage(path) {
  const answer = await fetch(path);
  if (answer.ok) return answer.blob();
  throw new Error((await answer.json()).error);
}

async function reload() {
  const found = await wait(ask("graphs"));
  if (!found) return;
  const before = JSON.stringify(shown.graphs);
  shown.graphs = found.graphs;
  const others = JSON.stringify(found.overlays) !== JSON.stringify(shown.overlays);
  shown.overlays = found.overlays;
  if (others) relist();
  if (JSON.stringify(found.graphs) === before) return;
  listRuns();
  listTags();
  listOthers(shown.graphs);
  if (shown.run === null && before !== "[]") await chooseGraph(addressed());
}

/** Says that the graph on the screen is no longer the latest of its tag. */
function sayNews({steps: known, times}) {
  const last = known.length - 1;
  news.hidden = shown.step !== null || last < 0 || times[last] === shown.time;
  news.textContent = news.hidden ? "" : `Step ${known[last]} is newer: show it`;
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
  const graph = own.find(({tag}) => tag === shown.tag) || {steps: [], times: []};
  const rows = graph.steps.map((step, at) => [String(step), `${step} · ${new Date(graph.times[at] * 1000).toLocaleString()}`]);
  const onScreen = graph.steps[graph.times.indexOf(shown.time)];
  fill(steps, rows.reverse(), String(shown.step === null ? onScreen : shown.step));
  steps.parentElement.hidden = rows.length < 2;
  sayNews(graph);
}

// -- what is shown --------------------------------------------------------------------------

/** Shows another graph; what is selected and open stays as far as it is there, too. */
function change(place) {
  const {node = "", open = null} = addressed();
  shown.kept = true;
  return chooseGraph(place, () => setAddress({node, open}, {jump: true}));
}

/** Shows a graph: the one that is named, as far as there is such a one. */
async function chooseGraph({run, tag, step}, before = () => {}) {
  const {graphs} = shown;
  const named = graphs.filter((one) => one.run === run);
  const own = named.length ? named : graphs.slice(0, 1);
  const graph = own.find((one) => one.tag === (tag || "")) || own[0];
  if (!graph) {
    document.getElementById("title").textContent = "The log has no graph yet.";
    return;
  }
  const at = graph.steps.map(String).lastIndexOf(String(step));
  const time = graph.times[at < 0 ? graph.times.length - 1 : at];
  Object.assign(shown, {run: graph.run, tag: graph.tag, step: at < 0 ? null : graph.steps[at], time});
  listOthers(graphs);
  before();
  listRuns();
  listTags();
  const place = new URLSearchParams({run: shown.run, tag: shown.tag, ...otherParts()});
  if (shown.step !== null) place.set("step", String(shown.step));
  // While a picture is open, a later graph may be written under the same tag.
  if (time !== undefined) place.set("time", String(time));
  const get = (kind, number) => ask(`${kind}?${place}${number === undefined ? "" : `&number=${number}`}`);
  await wait(start({
    head: () => get("head"), level: (number) => get("level", number),
    card: (number) => get("card", number), index: () => get("index"),
    figures: (asked) => ask(`figures?${place}&${new URLSearchParams(asked)}`),
    overlays: () => shown.overlays.filter((one) => one.run === graph.run),
    modules: () => get("modules"), record: () => get("record"),
  }, {
    read: readAddress, write: setAddress, link: () => window.parent.location.href,
    whole: () => wholePage(`page?${place}`),
  }));
}

// -- the address ----------------------------------------------------------------------------

/** Returns what the address of TensorBoard's page says of this tab. */
function addressed() {
  const found = {};
  for (const part of window.parent.location.hash.slice(1).split("&")) {
    const [key, value] = part.split("=");
    if (key.startsWith(PREFIX) && value !== undefined) found[key.slice(PREFIX.length)] = decoded(value);
  }
  return found;
}

function readAddress() {
  const {node = "", open = null} = addressed(), {kept} = shown;
  shown.kept = false;
  return {node, open, kept};
}

function setAddress({node, open}, {jump = false} = {}) {
  const {location, history} = window.parent;
  const others = location.hash.slice(1).split("&").filter((part) => !part.startsWith(PREFIX));
  // Another dashboard of TensorBoard's may be shown by now.
  if (others[0] && others[0] !== "tbscope") return;
  const parts = {run: shown.run, tag: shown.tag, step: shown.step === null ? "" : String(shown.step), ...otherParts(), open, node};
  const own = Object.entries(parts).filter(([, value]) => value)
    .map(([key, value]) => `${PREFIX}${key}=${encoded(value)}`);
  history[jump ? "pushState" : "replaceState"](history.state, "", `#${[...others, ...own].join("&")}`);
}

// -- TensorBoard's dark mode ----------------------------------------------------------------

function followTheme() {
  const body = window.parent.document.body;
  const take = () => { document.documentElement.dataset.theme = body.classList.contains("dark-mode") ? "dark" : "light"; };
  new MutationObserver(take).observe(body, {attributes: true, attributeFilter: ["class"]});
  take();
}

export {open};
