// The viewer: what is open, selected and seen, and what keys and the mouse do.

import {showCard} from "./card.js";
import {colourModes, showLegend} from "./colours.js";
import {make, shape} from "./elements.js";
import {blockOf, boxesAround, CIRCLE, Graph, showBlock} from "./graph.js";
import {forget, layOut} from "./layout.js";
import {addSearch} from "./search.js";
import {drawInside} from "./svg.js";

const MOST_DRAWN = 1500, LEGIBLE = 0.55;
const get = (id) => document.getElementById(id);
const canvas = get("canvas"), world = get("world");
const inFrame = window.parent !== window;

let graph = null, root = null, modes = [], address = null;

const view = {
  graph: null, mode: null, selected: null, picked: null, marked: new Set(), holding: new Set(),
  up: false, x: 0, y: 0, zoom: 1, drawn: null,
  toggle, show, mark, focus: () => canvas.focus({preventScroll: true}),
};


// -- drawing --------------------------------------------------------------------------------

function draw() {
  layOut(root, view.up);
  const drawn = {groups: new Map(), lines: [], graph};
  const holder = shape("g");
  drawInside(root, view, holder, 0, 0, drawn);
  world.replaceChildren(holder);
  view.drawn = drawn;
  showSelection();
}

function showSelection() {
  const {drawn, selected, marked, picked} = view;
  canvas.classList.toggle("searching", marked.size > 0);
  canvas.classList.toggle("picking", Boolean(picked));
  for (const [at, group] of drawn.groups) {
    const thing = graph.at(at);
    group.classList.toggle("selected", thing === selected);
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

/** Gives the middle of what is drawn for a thing, in the units of the drawing. */
function placeOf(thing) {
  let x = 0, y = 0, width = 0, height = 0, one = thing;
  while (one.around && !isDrawn(one)) one = one.around;
  if (!one.around) return {x: root.layout.width / 2, y: root.layout.height / 2, width: root.layout.width, height: root.layout.height};
  ({width, height} = one.around.layout.places.get(one.at));
  ({x, y} = one.around.layout.places.get(one.at));
  for (let box = one.around; box.around; box = box.around) {
    const at = box.around.layout.places.get(box.at);
    x += at.x - at.width / 2;
    y += at.y - at.height / 2;
  }
  return {x, y, width, height};
}

function isDrawn(thing) {
  if (thing.kind === CIRCLE) return false;
  for (let one = thing; one.around; one = one.around) {
    if (!one.around.open || !one.around.children.includes(one)) return false;
  }
  return true;
}

function fit(thing = root, most = 1.25) {
  const {x, y, width, height} = placeOf(thing);
  const {width: wide, height: high} = canvas.getBoundingClientRect();
  const room = 24;
  view.zoom = Math.max(0.02, Math.min(most, (wide - 2 * room) / width, (high - 2 * room) / height));
  view.x = wide / 2 - x * view.zoom;
  view.y = high / 2 - y * view.zoom;
  move();
}

/** Opens what is around the thing with a number, selects it, and brings it into sight. */
async function show(number) {
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
  select(thing);
  const {x, y} = placeOf(shownFor(thing));
  const {width, height} = canvas.getBoundingClientRect();
  if (view.zoom < 0.6) view.zoom = 0.9;
  view.x = width / 2 - x * view.zoom;
  view.y = height / 2 - y * view.zoom;
  move();
}

/** Waits for an answer; one that does not come is said, and is nothing. */
export async function wait(answer) {
  try { return await answer; } catch (error) { say(error.message); return null; }
}

/** A circle is drawn at the node that reads it. */
function shownFor(thing) {
  if (thing.kind !== CIRCLE) return thing;
  return thing.around.level.children.find((node) => node.circles.includes(thing)) || thing;
}

// -- what one does --------------------------------------------------------------------------

function select(thing) {
  view.selected = thing;
  showSelection();
  wait(showCard(get("card"), thing, view));
  address.write(thing.name);
}

async function toggle(box) {
  if (!box.isBox || box === root || !await wait(graph.load(box))) return;
  keepHead(box, () => { box.open = !box.open; forget(box); });
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
}

function closeAll() {
  for (const thing of graph.things.values()) if (thing !== root && thing.open) { thing.open = false; thing.layout = null; }
  root.layout = null;
  draw();
  fit();
}

function zoomBy(factor, x, y) {
  const {width, height} = canvas.getBoundingClientRect();
  x = x === undefined ? width / 2 : x;
  y = y === undefined ? height / 2 : y;
  const zoom = Math.max(0.02, Math.min(6, view.zoom * factor));
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
  line.textContent = text;
  line.hidden = !text;
}

/** Goes along the flow (1, -1), or to what is drawn beside (in pixels to the right or left). */
function step(down, right) {
  const from = view.selected;
  if (from === root) return select(root.children[0] || root);
  if (right) return beside(from, right);
  const forward = down > 0;
  const level = from.around;
  const ends = level.lines.filter((line) => (forward ? line.start : line.end) === from.at);
  if (ends.length) return reach(graph.at(forward ? ends[0].end : ends[0].start));
  if (level !== root) return reach(level);
}

function beside(from, right) {
  const own = placeOf(from);
  const others = from.around.children.filter((thing) => thing !== from)
    .map((thing) => [placeOf(thing), thing])
    .filter(([{x}]) => (x - own.x) * right > 1)
    .sort(([one], [other]) => away(one, own) - away(other, own));
  if (others.length) reach(others[0][1]);
}

function away(one, other) {
  return Math.abs(one.x - other.x) + 3 * Math.abs(one.y - other.y);
}

function reach(thing) {
  select(thing);
  const {x, y} = placeOf(thing), {width, height} = canvas.getBoundingClientRect();
  const left = view.x + x * view.zoom, top = view.y + y * view.zoom;
  if (left < 40 || left > width - 40 || top < 40 || top > height - 40) {
    view.x += width / 2 - left;
    view.y += height / 2 - top;
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

const KEYS = {
  "+": () => zoomBy(1.25), "=": () => zoomBy(1.25), "-": () => zoomBy(0.8), f: () => fit(),
  "[": () => turnTo(repeatAround(view.selected), -1), "]": () => turnTo(repeatAround(view.selected), 1),
  a: () => turnTo(repeatAround(view.selected), 0),
  e: openMore, c: closeAll, u: turn, d: darken, "?": showKeys,
  "/": () => { get("pattern").focus(); get("pattern").select(); },
  Enter: () => toggle(view.selected), " ": () => toggle(view.selected),
  Backspace: () => { if (view.selected.around) reach(view.selected.around); },
  ArrowDown: () => step(view.up ? -1 : 1, 0), ArrowUp: () => step(view.up ? 1 : -1, 0),
  ArrowLeft: () => step(0, -1), ArrowRight: () => step(0, 1),
  Escape: () => select(root),
};

document.addEventListener("keydown", (event) => {
  const field = event.target.closest && event.target.closest("input, select, button, a, dialog");
  if (field || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
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
  if (drag && !moved && canvas.contains(event.target)) {
    say("");
    view.focus();
    select(thingAt(event.target));
  }
  drag = null;
});
canvas.addEventListener("dblclick", (event) => {
  if (!event.target.classList.contains("turn")) toggle(thingAt(event.target));
});
canvas.addEventListener("click", (event) => {
  const {classList, dataset} = event.target;
  if (classList.contains("sign")) toggle(thingAt(event.target));
  if (classList.contains("turn")) turnTo(thingAt(event.target), Number(dataset.way));
});
canvas.addEventListener("wheel", (event) => {
  // In a notebook, the wheel scrolls the notebook.
  if (inFrame && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const {left, top} = canvas.getBoundingClientRect();
  zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - left, event.clientY - top);
}, {passive: false});

// -- the bar --------------------------------------------------------------------------------

for (const [id, act] of Object.entries({
  open: openMore, close: closeAll, out: () => zoomBy(0.8), in: () => zoomBy(1.25), fit: () => fit(),
  flow: turn, dark: darken, help: showKeys,
})) get(id).addEventListener("click", () => { say(""); act(); });

function choose(key) {
  view.mode = modes.find((mode) => mode.key === key) || modes[0];
  view.picked = null;
  get("mode").value = view.mode.key;
  draw();
  showLegend(get("legend"), view.mode, (entry, button) => {
    const again = button.getAttribute("aria-pressed") === "true";
    for (const one of get("legend").querySelectorAll("button")) one.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(!again));
    view.picked = again ? null : (thing) => entry.has(thing) || thing.isBox && !thing.open && entry.below(thing);
    showSelection();
  });
}

/**
 * Draws a graph as its first answer says, and then what the address names.
 *
 * @param {object} source - Promises of answers (see `Graph`), and of the first, `head()`.
 * @param {object} page - `read()` returns the name in the address, and `write(name)` sets it.
 */
export async function start(source, page) {
  address = page;
  const {words, head} = await source.head();
  graph = view.graph = new Graph(source, head, words);
  root = view.selected = graph.root;
  modes = colourModes(head, words);
  Object.assign(view, {picked: null, marked: new Set(), holding: new Set()});
  get("title").textContent = head.title || "graph";
  get("mode").replaceChildren(...modes.map((mode) => make("option", {value: mode.key}, mode.title)));
  choose(modes[0].key);
  fit();
  // A tall graph begins at its inputs, large enough to be read.
  if (view.zoom < LEGIBLE) {
    view.zoom = LEGIBLE;
    view.x = canvas.getBoundingClientRect().width / 2 - root.layout.width / 2 * LEGIBLE;
    view.y = 24;
    move();
  }
  await follow();
}

get("mode").addEventListener("change", (event) => { choose(event.target.value); });
addSearch(get("pattern"), get("hits"), view);

/** Shows what the address names. */
export async function follow() {
  const name = address.read();
  const number = name ? await wait(graph.find(name)) : 0;
  if (number > 0) return show(number);
  await wait(showCard(get("card"), root, view));
  if (name && number === -1) say(`The graph holds nothing named ${name}.`);
}
