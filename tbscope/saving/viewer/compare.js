// Compare: which other graph of the log the one that is shown is compared with.

import {fill, make} from "./elements.js";

const BEFORE = ["before_run", "before_tag", "before_step"];
const before = {on: false, run: "", tag: "", step: "", graphs: []};
const box = make("input", {type: "checkbox", id: "compares"});
const lists = Object.fromEntries(["run", "tag", "step"].map((part) =>
  [part, make("select", {"aria-label": `${part[0].toUpperCase()}${part.slice(1)} to compare with`})]));

/** Returns the part of the bar that chooses the other graph; calls back when it is another one. */
export function comparing(act) {
  box.addEventListener("change", () => { before.on = box.checked; listOthers(before.graphs); act(); });
  for (const [part, list] of Object.entries(lists)) {
    list.addEventListener("change", () => {
      before[part] = list.value;
      if (part === "run") before.tag = null;
      if (part !== "step") before.step = "";
      listOthers(before.graphs);
      act();
    });
  }
  return make("span", {class: "compare"}, make("label", {}, box, "Compare with"), ...Object.values(lists));
}

/** Lists the graphs of the log, and takes the first run and tag where none is chosen. */
export function listOthers(graphs) {
  before.graphs = graphs;
  const runs = [...new Set(graphs.map(({run}) => run))];
  if (!runs.includes(before.run)) before.run = runs.length ? runs[0] : "";
  const own = graphs.filter(({run}) => run === before.run);
  const graph = own.find(({tag}) => tag === before.tag) || own[0] || {tag: "", steps: []};
  before.tag = graph.tag;
  fill(lists.run, runs.map((run) => [run, run]), before.run);
  fill(lists.tag, own.map(({tag}) => [tag, tag.trimEnd() || "Default"]), before.tag);
  fill(lists.step, [["", "latest"], ...graph.steps.map((step) => [String(step), String(step)]).reverse()], before.step);
  for (const list of Object.values(lists)) list.hidden = !before.on;
  if (graph.steps.length < 2) lists.step.hidden = true;
  box.checked = before.on;
}

/** Takes the other graph from the parts of an address; returns whether it is another one. */
export function takeOther(parts) {
  const known = JSON.stringify(otherParts());
  before.on = parts.before_run !== undefined;
  for (const key of BEFORE) if (before.on) before[key.slice("before_".length)] = parts[key] || "";
  return JSON.stringify(otherParts()) !== known;
}

/** Returns the parts of an address, or of a request, that name the other graph; none for no other. */
export function otherParts() {
  if (!before.on) return {};
  return {before_run: before.run, before_tag: before.tag, ...before.step === "" ? {} : {before_step: before.step}};
}
