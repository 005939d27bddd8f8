// The viewer: what is open, selected and seen, and what keys and the mouse do.

import {showCard} from "./card.js";
import {colourModes, modeOptions, showLegend} from "./colours.js";
import {brief, shape, visible} from "./elements.js";
import {addExport} from "./export.js";
import {blockOf, boxesAround, Graph, showBlock, shownFor} from "./graph.js";
import {forget, forgetAll, layOut, writeWords} from "./layout.js";
import {openBoxes, openedText} from "./opened.js";
import {addPanels} from "./panels.js";
import {addSearch} from "./search.js";
import {drawInside, spoken} from "./svg.js";
import {along, beside, endOfLevel, nextOf, placeOf} from "./ways.js";

const MOST_DRAWN = 1500, LEGIBLE = 0.68, READABLE = 0.85, LEAST_ZOOM = 0.02, MOST_IN_ADDRESS = 4000;
const get = (id) => document.getElementById(id);
const canvas = get("canvas"), world = get("world");
// A notebook shows the page in a frame of its own document.
const inNotebook = location.protocol === "about:";

let graph = null, root = null, modes = [], listModes = null, address = null, started = 0;

const view = {
  graph: null, mode: null, selected: null, picked: null, marked: new Set(), holding: new Set(),
  up: false, x: 0, y: 0, zoom: 1, drawn: null, width: 0, height: 0,
  toggle, show, mark, focus: () => canvas.focus({preventScroll: true}),
  showPanel: (name) => panels.show(name),
};

// -- drawing --------------------------------------------------------------------------------

function draw() {
  layOut(root, view.up);
  const drawn = {groups: new Map(), lines: [], graph};
  const holder = shape("g", {role: "none"});
  drawInside(root, view, holder, 0, 0, drawn);
  world.replaceChildren(holder);
  view.drawn = drawn;
  showSelection();
}

function showSelection() {
  const {drawn, selected, marked, picked} = view;
  // A counterpart in a box that is closed is marked by the box.
  const counterparts = new Set(selected.counterparts.map((way) => way.find((at) => drawn.groups.has(at))));
  canvas.classList.toggle("searching", marked.size > 0);
  canvas.classList.toggle("picking", Boolean(picked));
  if (drawn.groups.has(selected.at)) canvas.setAttribute("aria-activedescendant", `thing${selected.at}`);
  else canvas.removeAttribute("aria-activedescendant");
  for (const [at, group] of drawn.groups) {
    const thing = graph.at(at);
    group.classList.toggle("selected", thing === selected);
    group.classList.toggle("counterpart", counterparts.has(at));
    group.setAttribute("aria-selected", String(thing === selected));
    group.classList.toggle("hit", marked.has(at) || (!thing.open && view.holding.has(at)));
    group.classList.toggle("picked", Boolean(picked) && (picked(thing) || thing.open));
  }
  for (const {line, path: one} of drawn.lines) {
    const near = selected !== root && (line.start === selected.at || line.end === selected.at);
    one.classList.toggle("near", near);
  }
}

function move() {
  world.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.zoom})`);
}

// -- where things are -----------------------------------------------------------------------

/** Returns the part of the canvas that the legend leaves free. */
function freePart() {
  const {left, width, height} = canvas.getBoundingClientRect();
  const {right, width: covered} = get("legends").getBoundingClientRect();
  const start = get("legends").open && covered < width / 3 ? Math.max(0, right - left) : 0;
  return {start, middle: start + (width - start) / 2, width: width - start, height};
}

function fit(thing = root, most = 1.25) {
  const {x, y, width, height} = placeOf(thing);
  const free = freePart();
  const room = 24;
  view.zoom = Math.max(LEAST_ZOOM, Math.min(most, (free.width - 2 * room) / width, (free.height - 2 * room) / height));
  view.x = free.middle - x * view.zoom;
  view.y = free.height / 2 - y * view.zoom;
  move();
}

/** Shows the whole graph; a large one begins at its first input, large enough to be read. */
function lookFirst() {
  fit();
  if (view.zoom >= LEGIBLE) return;
  const {middle, width, height} = freePart();
  const isWide = root.layout.width * READABLE > width - 48;
  view.zoom = READABLE;
  view.x = middle - (isWide && root.children[0] ? placeOf(root.children[0]).x : root.layout.width / 2) * READABLE;
  view.y = view.up ? height - 24 - root.layout.height * READABLE : 24;
  move();
}

function centre(thing) {
  const {x, y} = placeOf(shownFor(thing)), {middle, height} = freePart();
  view.x = middle - x * view.zoom;
  view.y = height / 2 - y * view.zoom;
  move();
}

/** Shows the legend at first where there is room for it. */
function unfoldLegend() {
  get("legends").open = innerWidth >= 1200 && innerHeight >= 640;
}

/** Whether all of a thing is in a picture of this width and height. */
function isWithin(thing, room) {
  const {x, y, width, height} = placeOf(thing), {zoom} = view;
  const left = view.x + (x - width / 2) * zoom, top = view.y + (y - height / 2) * zoom;
  return left >= 0 && top >= 0 && left + width * zoom <= room.width && top + height * zoom <= room.height;
}

/** Keeps in sight what was; what was hidden is laid out now. */
function resize() {
  const {width, height} = canvas.getBoundingClientRect();
  const before = {width: view.width, height: view.height};
  Object.assign(view, {width, height});
  if (!graph || !width || !height) return;
  if (before.width && before.height) {
    if (isWithin(root, before)) return fit(root, view.zoom);
    const wasSeen = view.selected !== root && isWithin(view.selected, before);
    view.x += (width - before.width) / 2;
    view.y += (height - before.height) / 2;
    if (wasSeen) bringIntoSight(view.selected);
    return move();
  }
  unfoldLegend();
  // A frame that is not shown has no fonts to measure texts by.
  forgetAll(graph.things.values());
  draw();
  lookFirst();
  if (view.selected !== root) centre(view.selected);
}

new ResizeObserver(resize).observe(canvas);

/** Opens what is around the thing with a number, selects it, and brings it into sight. */
async function show(number, {jump = false} = {}) {
  say("");
  const thing = await wait(graph.reach(number));
  if (!thing) return;
  const around = boxesAround(thing);
  around.forEach((box, depth) => {
    const child = around[depth + 1] || shownFor(thing);
    if (box.times && box.shows !== null && !box.children.includes(child)) showBlock(box, blockOf(box, child));
    box.open = true;
    forget(box);
  });
  draw();
  select(thing, {jump});
  if (view.zoom < 0.6) view.zoom = 0.9;
  centre(thing);
}

/** Waits for an answer; one that does not come is said, and is nothing. */
export async function wait(answer) {
  try { return await answer; } catch (error) { say(error.message); return null; }
}

// -- what one does --------------------------------------------------------------------------

function select(thing, {jump = false} = {}) {
  view.selected = thing;
  showSelection();
  wait(showCard(get("card"), thing, view));
  panels.mark(thing);
  writeAddress({jump});
  // The picture that has the focus says it by itself.
  if (document.activeElement !== canvas) announce(thing === root ? "" : spoken(thing));
}

function announce(text) {
  get("spoken").textContent = text;
}

/** Writes what is selected and open; a jump is a place that the browser goes back to. */
function writeAddress({jump = false} = {}) {
  address.write({node: view.selected.name.length > MOST_IN_ADDRESS ? "" : view.selected.name, open: openedText(graph, view.selected)}, {jump});
}

async function toggle(box) {
  const open = !box.open;
  if (!box.isBox || box === root || !await wait(graph.load(box))) return;
  keepHead(box, () => { box.open = open; forget(box); });
}

/** Changes a box, draws anew, and selects it; its head stays where it was on the screen. */
function keepHead(box, change) {
  const before = placeOf(box);
  change();
  draw();
  const after = placeOf(box);
  view.x += (before.x - after.x) * view.zoom;
  view.y += (before.y - before.height / 2 - after.y + after.height / 2) * view.zoom;
  move();
  select(box);
  announce(spoken(box));
}

/** Shows the next of the equal blocks in a box, the one before, or all of them and one again. */
function turnTo(box, way) {
  if (!box.times) return;
  const next = box.shows === null ? 0 : (box.shows + way + box.times) % box.times;
  keepHead(box, () => { showBlock(box, way || box.shows === null ? next : null); forget(box); });
}

function drawnCount(box) {
  return box.children.reduce((sum, child) => sum + 1 + (child.isBox && child.open ? drawnCount(child) : 0), 0);
}

function closedBoxes(box) {
  return box.children.flatMap((child) => !child.isBox ? [] : child.open ? closedBoxes(child) : [child]);
}

async function openMore() {
  const boxes = closedBoxes(root);
  if (!boxes.length) return say("All boxes are open.");
  const count = drawnCount(root) + boxes.reduce((sum, box) => sum + box.size, 0);
  if (count > MOST_DRAWN) {
    return say(`That would draw ${count.toLocaleString("en")} things at once: open the boxes that you need.`);
  }
  if (!await wait(Promise.all(boxes.map((box) => graph.load(box))))) return;
  for (const box of boxes) { box.open = true; forget(box); }
  draw();
  fit();
  writeAddress();
}

function closeAll() {
  for (const thing of graph.things.values()) if (thing !== root && thing.open) { thing.open = false; thing.layout = null; }
  root.layout = null;
  draw();
  fit();
  select(boxesAround(view.selected)[0] || view.selected);
}

function zoomBy(factor, x, y) {
  const {width, height} = canvas.getBoundingClientRect();
  x = x === undefined ? width / 2 : x;
  y = y === undefined ? height / 2 : y;
  const zoom = Math.max(LEAST_ZOOM, Math.min(6, view.zoom * factor));
  view.x = x - (x - view.x) * zoom / view.zoom;
  view.y = y - (y - view.y) * zoom / view.zoom;
  view.zoom = zoom;
  move();
}

function turn() {
  view.up = !view.up;
  get("flow").textContent = view.up ? "↑" : "↓";
  draw();
  fit();
}

function darken() {
  const dark = !isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Marks what a search found, and the boxes that contain some of it. */
function mark(found, index) {
  view.marked = new Set(found);
  view.holding = new Set();
  for (const number of found) {
    for (let at = index.around[number]; at > 0 && !view.holding.has(at); at = index.around[at]) {
      view.holding.add(at);
    }
  }
  showSelection();
}

function say(text) {
  const line = get("message");
  line.textContent = visible(brief(text, 1000));
  line.hidden = !text;
}

/** Selects a thing that some way leads to, if one does, and brings it into sight. */
function go(way, ...where) {
  const next = way(view.selected, ...where);
  if (next) reach(next);
}

/** Goes into a box, and opens it. */
async function enter() {
  const box = view.selected;
  if (!box.isBox) return;
  if (!box.open) await toggle(box);
  if (box.open && box.children.length) reach(box.children[0]);
}

function reach(thing) {
  select(thing);
  bringIntoSight(thing);
}

function bringIntoSight(thing) {
  const {x, y, height: high} = placeOf(shownFor(thing)), {start, width, height} = freePart();
  const left = view.x + x * view.zoom, top = view.y + y * view.zoom;
  // Of a tall box, the head is in sight.
  const head = top - Math.max(0, high * view.zoom - height + 80) / 2;
  if (left < start + 40 || left > start + width - 40 || head < 40 || head > height - 40) {
    view.x += start + width / 2 - left;
    view.y += height / 2 - head;
    move();
  }
}

function showKeys() {
  const keys = get("keys");
  if (keys.open) keys.close();
  else keys.showModal();
}

/** Returns the open box of equal blocks that is selected, or is around what is selected. */
function repeatAround(thing) {
  for (let box = thing; box; box = box.around) if (box.times && box.open) return box;
  return root;
}

function toLegend() {
  get("legends").open = true;
  const first = get("legend").querySelector("button");
  if (first) first.focus();
}

const KEYS = {
  "+": () => zoomBy(1.25), "=": () => zoomBy(1.25), "-": () => zoomBy(0.8), f: () => fit(),
  "[": () => turnTo(repeatAround(view.selected), -1), "]": () => turnTo(repeatAround(view.selected), 1),
  a: () => turnTo(repeatAround(view.selected), 0),
  e: openMore, c: closeAll, u: turn, d: darken, "?": showKeys, k: () => get("mode").focus(), l: toLegend,
  t: () => panels.toggle(),
  "/": () => { get("pattern").focus(); get("pattern").select(); },
  Enter: () => toggle(view.selected), " ": () => toggle(view.selected),
  Backspace: () => go((thing) => thing.around), i: enter,
  ArrowDown: () => go(along, view.up ? -1 : 1), ArrowUp: () => go(along, view.up ? 1 : -1),
  ArrowLeft: () => go(beside, -1), ArrowRight: () => go(beside, 1),
  Home: () => go(endOfLevel, 0), End: () => go(endOfLevel, -1),
  PageDown: () => go(nextOf, 1), PageUp: () => go(nextOf, -1),
  Escape: () => select(root),
};

document.addEventListener("keydown", (event) => {
  const field = event.target.closest && event.target.closest("input, select, button, a, dialog");
  if (field || event.ctrlKey || event.metaKey || event.altKey || !graph || !(event.key in KEYS)) return;
  event.preventDefault();
  say("");
  KEYS[event.key]();
});

// -- the mouse ------------------------------------------------------------------------------

function thingAt(target) {
  const group = target.closest && target.closest(".thing");
  return group ? graph.at(Number(group.dataset.at)) : root;
}

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  drag = {x: event.clientX, y: event.clientY, moved: false};
});
window.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const x = event.clientX - drag.x, y = event.clientY - drag.y;
  if (!drag.moved && Math.abs(x) + Math.abs(y) < 4) return;
  Object.assign(drag, {x: event.clientX, y: event.clientY, moved: true});
  canvas.classList.add("dragged");
  view.x += x;
  view.y += y;
  move();
});
window.addEventListener("pointerup", (event) => {
  const moved = drag && drag.moved;
  canvas.classList.remove("dragged");
  if (graph && drag && !moved && canvas.contains(event.target)) {
    say("");
    view.focus();
    select(thingAt(event.target));
  }
  drag = null;
});
canvas.addEventListener("dblclick", (event) => {
  if (graph && !event.target.classList.contains("turn")) toggle(thingAt(event.target));
});
canvas.addEventListener("click", (event) => {
  const {classList, dataset} = event.target;
  if (classList.contains("sign")) toggle(thingAt(event.target));
  if (classList.contains("turn")) turnTo(thingAt(event.target), Number(dataset.way));
});
canvas.addEventListener("wheel", (event) => {
  // In a notebook, the wheel scrolls the notebook.
  if (inNotebook && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const {left, top} = canvas.getBoundingClientRect();
  zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - left, event.clientY - top);
}, {passive: false});

// -- the bar --------------------------------------------------------------------------------

for (const [id, act] of Object.entries({
  open: openMore, close: closeAll, out: () => zoomBy(0.8), in: () => zoomBy(1.25), fit: () => fit(),
  flow: turn, dark: darken, help: showKeys, tables: () => panels.toggle(),
})) get(id).addEventListener("click", () => { if (graph) { say(""); act(); } });

addExport(get("saving"), get("save"), {
  canvas, world, say, title: () => get("title").textContent, page: () => address || {},
});

/** Colours by a mode, after it was asked for where it is one of those that have to be. */
async function choose(key) {
  let mode = modes.find((one) => one.key === key) || modes[0];
  if (mode.load) {
    const own = graph, loaded = await wait(mode.load());
    // Another one was chosen meanwhile.
    if (own !== graph || get("mode").value !== key) return;
    if (loaded && modes.includes(mode)) {
      modes.splice(modes.indexOf(mode), 1, ...loaded);
      get("mode").replaceChildren(...modeOptions(modes));
    }
    mode = loaded ? loaded[0] : view.mode;
  }
  view.mode = mode;
  view.picked = null;
  get("mode").value = mode.key;
  writeWords(mode, graph.things.values());
  draw();
  showLegend(get("legend"), mode, (entry) => {
    view.picked = entry && ((thing) => entry.has(thing) || thing.isBox && !thing.open && entry.below(thing));
    showSelection();
  });
}

/** Shows no graph: where one cannot be read, the one before must not stay under its name. */
function clear() {
  graph = root = view.graph = null;
  for (const id of ["world", "card", "legend", "title", "mode"]) get(id).replaceChildren();
  panels.renew();
}

/**
 * Draws a graph as its first answer says, and then what the address names.
 *
 * @param {object} source - Promises of answers (see `Graph`), and of the first, `head()`.
 * @param {object} page - `read()` returns the selected node and the opened boxes of the address, and
 *   whether they were kept from another graph; `write({node, open}, {jump})` sets them; for
 *   `link()` and `whole()`, see `addExport`.
 */
export async function start(source, page) {
  const own = started += 1;
  say("");
  // Not later: text that is typed while the answer is awaited is searched in this graph.
  get("pattern").value = "";
  const {words, head} = await source.head().catch((error) => { if (own === started) clear(); throw error; });
  // Another graph was chosen meanwhile.
  if (own !== started) return;
  address = page;
  const {width, height} = canvas.getBoundingClientRect();
  graph = view.graph = new Graph(source, head, words);
  root = view.selected = graph.root;
  listModes = () => {
    modes = colourModes(head, words, source);
    get("mode").replaceChildren(...modeOptions(modes));
  };
  listModes();
  Object.assign(view, {picked: null, marked: new Set(), holding: new Set(), width, height});
  get("title").textContent = visible(brief(head.title || "graph", 200));
  choose(modes.find((mode) => !mode.load).key);
  get("pattern").dispatchEvent(new Event("input"));
  lookFirst();
  panels.renew();
  await follow();
}

/** Lists the ways to colour anew: the log has other overlays by now. */
export function relist() {
  if (!listModes) return;
  listModes();
  get("mode").value = view.mode.key;
}

get("mode").addEventListener("change", (event) => { choose(event.target.value); });
unfoldLegend();
addSearch(get("pattern"), get("hits"), view);
const panels = addPanels(view);

/** Shows what the address names; what it only kept from another graph may be missing here. */
export async function follow() {
  const {node, open, kept} = address.read();
  await wait(openBoxes(graph, open));
  view.selected = root;
  draw();
  lookFirst();
  const number = node ? await wait(graph.find(node)) : 0;
  if (number > 0) return show(number);
  await wait(showCard(get("card"), root, view));
  if (!root.children.length) say("The graph has no nodes.");
  else if (kept) writeAddress();
  else if (node && number === -1) say(`The graph holds nothing named ${node}.`);
}
