// Layout: where everything stands in an open box. A closed box is not laid out, and an open one
// again only when something in it was opened or closed.

import {lineText} from "./graph.js";

export const SIZES = {
  node: {height: 26, pad: 14, least: 56},
  box: {height: 44, pad: 16, least: 92},
  tall: 36, head: 30, side: 16, foot: 16,
  port: 6, circle: 4.5,
};
const FONT = '12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif';
const SMALL = FONT.replace("12px", "10px");
const LONGEST = 34;
// With more children, dagre's best ranks take too long.
const MANY = 160;
// A line across many others costs as much as all of them: of what more than this many children
// read, or of what reads more than this many, all lines but the nearest are stubs.
const MOST_LINES = 12;
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
  if (text.length <= LONGEST) return text;
  return `${text.slice(0, LONGEST - 12)}…${text.slice(-11)}`;
}

/** Gives what is written below a label: the class and sizes, and of a box how much is in it. */
export function secondLine(thing) {
  if (!thing.isBox) return shorten(thing.second);
  if (thing.times) return shorten(thing.second);
  const count = `${thing.inside.toLocaleString("en")} ${thing.inside === 1 ? "node" : "nodes"}`;
  return thing.second ? `${shorten(thing.second)} · ${count}` : count;
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
  const height = !thing.isBox && thing.second ? SIZES.tall : form.height;
  return {width: Math.max(form.least, Math.ceil(width) + 2 * form.pad), height};
}

/** Lays out a box: the places of its children around their middles, its lines, and its ports. */
export function layOut(box, up) {
  if (box.layout && box.layout.up === up) return box.layout;
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
        const at = line[other];
        of.set(at, [...of.get(at) || [], {line, out: hub === "end", text: name(line)}]);
      }
    }
  };
  const named = (at) => shorten(box.children[order.get(at)].label);
  add(box.lines, "start", "end", (line) => named(line.start));
  add(box.lines.filter((line) => !lines.has(line)), "end", "start", (line) => named(line.end));
  add(box.entries, "start", "end", (line) => shorten(line.name));
  add(box.exits, "end", "start", (line) => shorten(line.name));
  return {lines, of};
}

function roomOf(stubs) {
  if (!stubs) return 0;
  return STUB + Math.max(...stubs.map(({text}) => textWidth(text, SMALL))) + 6;
}

function measured(box, graph, drawn, up) {
  const {side, foot} = SIZES, head = box.around ? SIZES.head : 0;
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
  const title = box.around ? textWidth(shorten(box.label), FONT) + (box.times ? 190 : 60) : 0;
  const width = Math.max(right - left + 2 * side, title);
  const height = bottom - top + head + 2 * foot;
  const shift = (width - (right - left)) / 2 - left;
  const turn = (y) => up ? bottom - (y - top) - top : y - top;
  const place = (point) => ({x: point.x + shift, y: turn(point.y) + head + foot});
  const layout = {up, width, height, places: new Map(), lines: [], ports: new Map()};
  for (const child of box.children) {
    const node = graph.node(`n${child.at}`);
    layout.places.set(child.at, {...place(node), width: node.width, height: node.height});
  }
  const edgeOf = {in: up ? height : 0, out: up ? 0 : height};
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
      const below = name[0] === "o" ? !up : up;
      points[at] = {x: middle - width / 2 + x, y: below ? y + height / 2 : y - height / 2};
    }
  }
}

/** Forgets the layout of a box and of those around it, and of what reads the same cache. */
export function forget(box) {
  for (let one = box; one; one = one.around) one.layout = null;
}
