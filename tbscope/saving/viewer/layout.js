// Layout: where everything stands in an open box. A closed box is not laid out, and an open one
// again only when something in it was opened or closed.

import {visible} from "./elements.js";
import {lineText} from "./graph.js";
import {layOutLanes} from "./lanes.js";
import {layOutRanks} from "./ranks.js";

export const SIZES = {
  node: {height: 26, pad: 14, least: 56},
  box: {height: 44, pad: 16, least: 92},
  tall: 36, head: 30, side: 16, foot: 16,
  port: 6, circle: 4.5,
};
const FONT = '12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif';
const BOLD = `600 ${FONT}`;
const SMALL = FONT.replace("12px", "10px");
const LONGEST = 34;
// With more children, dagre's best ranks take too long.
const MANY = 160;
// A line across many others costs as much as all of them: of what more than this many children
// read, or of what reads more than this many, all lines but the nearest are stubs.
const MOST_LINES = 12;
const MOST_STUBS = 2;
export const STUB = 22;

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, font) {
  const key = font + text;
  let width = widths.get(key);
  if (width === undefined) {
    pen.font = font;
    widths.set(key, width = pen.measureText(text).width);
  }
  return width;
}

export function shorten(text) {
  // An escape makes a text longer.
  return shortened(visible(shortened(text)));
}

function shortened(text) {
  if (text.length <= LONGEST) return text;
  return `${text.slice(0, LONGEST - 12)}…${text.slice(-11)}`;
}

/** The way to colour: what it has for words is written at everything. */
let wording = {below: () => "", text: () => ""};

/** Sets the words that are written at things, and forgets layouts in which these have no room. */
export function writeWords(mode, things) {
  wording = mode;
  for (const box of things) {
    const {layout} = box;
    if (!layout) continue;
    if (layout.width < headWidth(box) || box.children.some((child) => isLarger(child, layout))) forget(box);
  }
}

function isLarger(child, {places, up}) {
  if (child.isBox && child.open) return false;
  const {width, height} = sizeOf(child, up), place = places.get(child.at);
  return width > place.width + 0.5 || height > place.height;
}

/** Gives what is written below a label: class and sizes, the words of the colour, and of a box how much is in it. */
export function secondLine(thing) {
  const parts = [shorten(thing.second), shorten(wording.below(thing))];
  if (thing.isBox && !thing.times) parts.push(`${thing.inside.toLocaleString("en")} ${thing.inside === 1 ? "node" : "nodes"}`);
  return parts.filter(Boolean).join(" · ");
}

/** Gives what is written beside the label of an open box: the words of its colour. */
export function besideLabel(box) {
  return shorten(wording.text(box));
}

export function labelWidth(box) {
  return 26 + textWidth(shorten(box.label), BOLD) + 8;
}

function headWidth(box) {
  if (!box.around) return 0;
  return labelWidth(box) + textWidth(besideLabel(box), SMALL) + (box.times ? 156 : 26);
}

function sizeOf(thing, up) {
  if (thing.isBox && thing.open) {
    const inner = layOut(thing, up);
    return {width: inner.width, height: inner.height};
  }
  const form = thing.isBox ? SIZES.box : SIZES.node;
  const first = textWidth(shorten(thing.label), FONT), second = textWidth(secondLine(thing), SMALL);
  let width = Math.max(thing.isBox ? first + 16 : first, second);
  if (!thing.isBox && thing.circles.length) width += 12;
  const height = !thing.isBox && secondLine(thing) ? SIZES.tall : form.height;
  return {width: Math.max(form.least, Math.ceil(width) + 2 * form.pad), height};
}

/** Lays out a box: the places of its children around their middles, its lines, and its ports. */
export function layOut(box, up) {
  if (box.layout && box.layout.up === up) return box.layout;
  if (box.hasLanes || box.hasRanks) {
    const {side, foot} = box.isLane ? {side: 0, foot: 0} : SIZES;
    const frame = {side, foot, head: box.around && !box.isLane ? SIZES.head : 0};
    return box.layout = (box.hasLanes ? layOutLanes : layOutRanks)(box, up, frame, layOut);
  }
  const graph = new dagre.Graph();
  const many = box.children.length > MANY;
  graph.setGraph({
    rankdir: "TB", nodesep: 22, ranksep: 30, edgesep: 12, marginx: 0, marginy: 0,
    ranker: many ? "longest-path" : "network-simplex",
  });
  const stubs = stubsOf(box);
  for (const child of box.children) {
    const {width, height} = sizeOf(child, up);
    // A stub has the same room at the other side, so that the child stays in the middle.
    graph.setNode(`n${child.at}`, {width: width + 2 * roomOf(stubs.of.get(child.at)), height});
  }
  const drawn = [];
  for (const line of box.lines) {
    if (stubs.lines.has(line)) continue;
    drawn.push({line, from: `n${line.start}`, to: `n${line.end}`, label: lineText(line)});
  }
  // What comes from outside enters through ports at one side, and leaves through those at the other.
  for (const [kind, lines, end] of [["i", box.entries, "start"], ["o", box.exits, "end"]]) {
    const anchor = `${kind}*`;
    for (const line of lines) {
      if (stubs.lines.has(line)) continue;
      const port = `${kind}${line[end]}`;
      if (!graph.hasNode(anchor)) graph.setNode(anchor, {width: 0, height: 0});
      if (!graph.hasNode(port)) {
        graph.setNode(port, {width: SIZES.port, height: 1});
        if (kind === "i") graph.setEdge(anchor, port, {weight: 100, minlen: 1});
        else graph.setEdge(port, anchor, {weight: 100, minlen: 1});
      }
      drawn.push(kind === "i" ? {line, from: port, to: `n${line.end}`, label: "", port: "in"}
        : {line, from: `n${line.start}`, to: port, label: "", port: "out"});
    }
  }
  for (const {from, to, label} of drawn) {
    const edge = {weight: 1, minlen: 1, width: 0, height: 0};
    if (label) Object.assign(edge, {width: textWidth(label, SMALL) + 8, height: 14, labelpos: "c"});
    graph.setEdge(from, to, edge);
  }
  dagre.layout(graph);
  box.layout = measured(box, graph, drawn, up);
  for (const [at, own] of stubs.of) {
    const place = box.layout.places.get(at);
    place.width -= 2 * roomOf(own);
    place.stubs = own;
  }
  return box.layout;
}

/** Returns the lines of a level that are drawn as stubs, and the texts of those of each child. */
function stubsOf(box) {
  const lines = new Set(), of = new Map();
  const put = (at, stub) => of.set(at, [...of.get(at) || [], stub]);
  const order = new Map(box.children.map((child, place) => [child.at, place]));
  const add = (all, hub, other, name) => {
    const groups = new Map();
    for (const line of all) groups.set(line[hub], [...groups.get(line[hub]) || [], line]);
    for (const group of groups.values()) {
      if (group.length <= MOST_LINES) continue;
      // Of what all read, the first reader keeps its line; of what reads all, the last one.
      const sorted = group.slice().sort((one, two) => order.get(one[other]) - order.get(two[other]));
      if (hub === "end") sorted.reverse();
      for (const line of sorted.slice(1)) {
        lines.add(line);
        put(line[other], {line, out: hub === "end", text: name(line)});
      }
    }
  };
  // Where a stage reads what another one has saved is clear from what is beside it.
  for (const line of box.exits) if (line.crosses) lines.add(line);
  for (const line of box.entries) {
    if (!line.crosses) continue;
    lines.add(line);
    // In an open box, its own children have the stubs.
    const child = box.children[order.get(line.end)];
    if (!(child.isBox && child.open)) put(line.end, {line, out: false, text: shorten(line.name)});
  }
  for (const {at, line, text} of box.stubs || []) put(at, {line, out: false, text: shorten(text)});
  const left = (all) => all.filter((line) => !lines.has(line));
  const named = (at) => shorten(box.children[order.get(at)].label);
  add(box.lines, "start", "end", (line) => named(line.start));
  add(left(box.lines), "end", "start", (line) => named(line.end));
  add(left(box.entries), "start", "end", (line) => shorten(line.name));
  add(left(box.exits), "end", "start", (line) => shorten(line.name));
  for (const [at, stubs] of of) of.set(at, [false, true].flatMap((out) => fewer(stubs.filter((stub) => stub.out === out))));
  return {lines, of};
}

/** Gives the first stubs of a child with their names, and one for the others. */
function fewer(stubs) {
  const rest = stubs.length - MOST_STUBS;
  return rest <= 0 ? stubs : [...stubs.slice(0, MOST_STUBS), {...stubs[MOST_STUBS], text: `and ${rest} more`}];
}

function roomOf(stubs) {
  if (!stubs) return 0;
  return STUB + Math.max(...stubs.map(({text}) => textWidth(text, SMALL))) + 6;
}

function measured(box, graph, drawn, up) {
  const {side, foot} = box.isLane ? {side: 0, foot: 0} : SIZES, head = box.around && !box.isLane ? SIZES.head : 0;
  const against = up !== box.back;
  let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
  const reach = (x, y, halfWidth = 0, halfHeight = 0) => {
    left = Math.min(left, x - halfWidth); right = Math.max(right, x + halfWidth);
    top = Math.min(top, y - halfHeight); bottom = Math.max(bottom, y + halfHeight);
  };
  for (const child of box.children) {
    const {x, y, width, height} = graph.node(`n${child.at}`);
    reach(x, y, width / 2, height / 2);
  }
  for (const {from, to, label} of drawn) {
    const edge = graph.edge(from, to);
    for (const point of edge.points) reach(point.x, (top + bottom) / 2);
    if (label && edge.x !== undefined) reach(edge.x, edge.y, edge.width / 2, edge.height / 2);
  }
  if (left > right) { left = right = top = bottom = 0; }
  const width = Math.max(right - left + 2 * side, head ? headWidth(box) : 0);
  const height = bottom - top + head + 2 * foot;
  const shift = (width - (right - left)) / 2 - left;
  const turn = (y) => against ? bottom - (y - top) - top : y - top;
  const place = (point) => ({x: point.x + shift, y: turn(point.y) + head + foot});
  const layout = {up, width, height, places: new Map(), lines: [], ports: new Map()};
  for (const child of box.children) {
    const node = graph.node(`n${child.at}`);
    layout.places.set(child.at, {...place(node), width: node.width, height: node.height});
  }
  const edgeOf = {in: against ? height : 0, out: against ? 0 : height};
  for (const {line, from, to, label, port} of drawn) {
    const edge = graph.edge(from, to);
    const points = edge.points.map(place);
    if (port) {
      const at = port === "in" ? 0 : points.length - 1;
      const x = graph.node(port === "in" ? from : to).x + shift;
      points[at] = {x, y: edgeOf[port]};
      layout.ports.set(port === "in" ? from : to, x);
    }
    layout.lines.push({
      line, label, port: port || "", points,
      at: label ? place({x: edge.x, y: edge.y}) : null,
    });
  }
  joinPorts(box, layout, up);
  return layout;
}

/** Has lines end where they go on inside of an open box. */
function joinPorts(box, layout, up) {
  const open = new Map(box.children.filter((child) => child.isBox && child.open)
    .map((child) => [child.at, child]));
  if (!open.size) return;
  for (const drawn of layout.lines) {
    const {line, points, port} = drawn;
    // Inside a box, what a port is called depends on where the line comes from in the end.
    const ends = port === "in" ? [[line.end, `i${line.start}`, points.length - 1]]
      : port === "out" ? [[line.start, `o${line.end}`, 0]]
        : [[line.end, `i${line.start}`, points.length - 1], [line.start, `o${line.end}`, 0]];
    for (const [number, name, at] of ends) {
      const child = open.get(number);
      const x = child && child.layout.ports.get(name);
      if (x === undefined) continue;
      const {x: middle, y, width, height} = layout.places.get(number);
      const against = up !== child.back;
      const below = name[0] === "o" ? !against : against;
      points[at] = {x: middle - width / 2 + x, y: below ? y + height / 2 : y - height / 2};
    }
  }
}

/** Forgets all layouts, and how wide texts are. */
export function forgetAll(things) {
  widths.clear();
  for (const thing of things) thing.layout = null;
}

/** Forgets the layout of a box and of those around it, and of what reads the same cache. */
export function forget(box) {
  for (let one = box; one; one = one.around) {
    const beside = one.layout && one.layout.beside;
    one.layout = null;
    if (beside && beside.layout) forget(beside);
  }
}
