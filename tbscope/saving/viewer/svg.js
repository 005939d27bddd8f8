// SVG: draws what is laid out.

import {paint, stripe} from "./colours.js";
import {shape} from "./elements.js";
import {lineWidth} from "./graph.js";
import {SIZES, STUB, secondLine, shorten} from "./layout.js";

/** Draws a box that is open, and gives the groups of what stands in it, by number. */
export function drawInside(box, view, holder, left, top, drawn) {
  const layout = box.layout;
  const lines = shape("g", {class: "lines"}), texts = shape("g", {class: "texts"});
  const inner = shape("g", {transform: `translate(${left},${top})`});
  holder.append(inner);
  // Open boxes lie below the lines, closed ones and nodes above.
  const open = box.children.filter((child) => child.isBox && child.open);
  const others = box.children.filter((child) => !(child.isBox && child.open));
  for (const child of open) inner.append(drawThing(child, layout.places.get(child.at), view, drawn));
  inner.append(lines);
  for (const one of layout.lines) drawLine(one, box, lines, texts, drawn);
  for (const child of others) inner.append(drawThing(child, layout.places.get(child.at), view, drawn));
  inner.append(texts);
}

function drawLine({line, label, points, port, at}, box, lines, texts, drawn) {
  const end = port === "out" ? null : drawn.graph.at(line.end);
  const arrives = end && !(end.isBox && end.open);
  const path = shape("path", {
    d: curve(points),
    class: line.tensors.length ? "line" : "line waits",
    "stroke-width": lineWidth(line).toFixed(2),
    "data-start": String(line.start), "data-end": String(line.end),
  });
  if (arrives) path.setAttribute("marker-end", "url(#arrow)");
  path.append(shape("title", {}, titleOf(line)));
  lines.append(path);
  drawn.lines.push({line, path});
  if (at) {
    texts.append(shape("text", {class: "sizes", x: at.x.toFixed(1), y: (at.y + 3).toFixed(1)}, label));
  }
}

function titleOf(line) {
  const types = line.tensors.map((one) => one ? `${one.sizes} ${one.dtype}` : "unknown");
  return types.length ? types.slice(0, 12).join("\n") : "waits for it, reads nothing";
}

/** Gives a smooth way through points: a B-spline from the first to the last. */
function curve(points) {
  const p = ({x, y}) => `${x.toFixed(1)},${y.toFixed(1)}`;
  const mix = (one, other, part) => ({
    x: one.x + (other.x - one.x) * part, y: one.y + (other.y - one.y) * part,
  });
  if (points.length < 3) return `M${p(points[0])}L${p(points[points.length - 1])}`;
  let path = `M${p(points[0])}L${p(mix(points[0], points[1], 1 / 2))}`;
  for (let at = 1; at < points.length - 1; at += 1) {
    path += `Q${p(points[at])} ${p(mix(points[at], points[at + 1], 1 / 2))}`;
  }
  return `${path}L${p(points[points.length - 1])}`;
}

function drawThing(thing, place, view, drawn) {
  const {x, y, width, height} = place;
  const kind = thing.isBox ? (thing.open ? "box open" : "box")
    : thing.class === "Input" || thing.class === "Output" ? "node end" : "node";
  const group = shape("g", {
    class: `thing ${kind}`, "data-at": String(thing.at), transform:
      `translate(${(x - width / 2).toFixed(1)},${(y - height / 2).toFixed(1)})`,
    role: "button", tabindex: "-1", "aria-label": spoken(thing),
  });
  if (thing.isBox) group.setAttribute("aria-expanded", String(thing.open));
  paint(group, view.mode.of(thing));
  drawn.groups.set(thing.at, group);
  const round = thing.isBox ? 6 : Math.min(height / 2, 16);
  if (thing.isBox && !thing.open) {
    // A second sheet behind it says that there is more inside.
    group.append(shape("rect", {class: "behind", x: 3, y: 3, width, height, rx: round}));
  }
  const body = shape("rect", {class: "body", width, height, rx: round});
  group.append(body);
  const parts = thing.isBox && !thing.open && view.mode.shares ? view.mode.shares(thing) : [];
  if (parts.length) stripe(group, body, parts, `stripes${thing.at}`);
  if (thing.isBox && thing.open) {
    group.append(shape("rect", {class: "head", width, height: SIZES.head, rx: round}),
      shape("text", {class: "label", x: 26, y: 19}, shorten(thing.label)),
      shape("text", {class: "sign", x: 14, y: 19.5}, "−"));
    if (thing.times) drawTurns(thing, width, group);
    drawInside(thing, view, group, 0, 0, drawn);
  } else if (thing.isBox) {
    group.append(shape("text", {class: "label", x: width / 2 + 6, y: 19}, shorten(thing.label)),
      shape("text", {class: "second", x: width / 2, y: 34}, secondLine(thing)),
      shape("text", {class: "sign", x: 13, y: 19.5}, "+"));
  } else {
    const room = thing.circles.length ? 6 : 0;
    const middle = width / 2 + room;
    group.append(shape("text", {class: "label", x: middle, y: thing.second ? 15 : height / 2 + 4},
      shorten(thing.label)));
    if (thing.second) group.append(shape("text", {class: "second", x: middle, y: 28}, secondLine(thing)));
    drawCircles(thing, group, height, drawn);
  }
  (place.stubs || []).forEach((stub, row) => drawStub(stub, row, place, group, drawn));
  group.append(shape("title", {}, hover(thing)));
  return group;
}

/** Draws which of the equal blocks in a box is shown, and what leads to the others. */
function drawTurns({shows, times}, width, group) {
  const turn = (x, way, text, name) => shape("text", {class: "turn", x, y: 19.5, "data-way": way,
    role: "button", "aria-label": name}, text);
  group.append(turn(width - 16, 0, shows === null ? "one" : "all", shows === null ? "Show one block" : "Show all blocks"));
  const place = shows === null ? `all ${times}` : `${shows + 1} of ${times}`;
  group.append(shape("text", {class: "second", x: width - 66, y: 19}, place));
  if (shows !== null) group.append(turn(width - 100, -1, "‹", "Show the block before"), turn(width - 34, 1, "›", "Show the next block"));
}

/** Draws a line whose other end is far away: its begin or end at a child, with a name there. */
function drawStub({line, out, text}, row, {width, height}, group, drawn) {
  const y = 10 + row * 13 > height - 4 ? height - 4 : 10 + row * 13;
  const side = out ? width : 0, way = out ? STUB : -STUB;
  const path = shape("path", {
    d: out ? `M${side},${y}h${way}` : `M${way},${y}H${side}`, class: "line stub",
    "data-start": String(line.start), "data-end": String(line.end), "marker-end": "url(#arrow)",
    "stroke-width": "1",
  });
  path.append(shape("title", {}, titleOf(line)));
  const label = shape("text", {class: out ? "second leaves" : "second enters", x: side + way * 1.2, y: y + 3}, text);
  group.append(path, label);
  drawn.lines.push({line, path});
}

/** Draws the parameters that a node reads, as small circles in its end. */
function drawCircles(node, group, height, drawn) {
  const {circle} = SIZES, most = 3;
  node.circles.slice(0, most).forEach((one, place, all) => {
    const y = height / 2 + (place - (all.length - 1) / 2) * (2 * circle - 2);
    const dot = shape("circle", {class: "thing circle", cx: 11, cy: y, r: circle - 1.5,
      "data-at": String(one.at), role: "button", tabindex: "-1", "aria-label": spoken(one)});
    dot.append(shape("title", {}, hover(one)));
    if (!drawn.groups.has(one.at)) drawn.groups.set(one.at, dot);
    group.append(dot);
  });
}

function spoken(thing) {
  if (!thing.isBox) return `${thing.label}, ${thing.class}`;
  const of = thing.class ? `, ${thing.class}` : "";
  return `box ${thing.label}${of}, ${thing.open ? "open" : "closed"}, ${thing.inside} nodes inside`;
}

function hover(thing) {
  const lines = [thing.name];
  if (thing.class) lines.push(thing.class);
  if (thing.outputs.length) lines.push(thing.outputs.slice(0, 6).map((one) => `${one.sizes} ${one.dtype}`).join(", "));
  return lines.join("\n");
}
