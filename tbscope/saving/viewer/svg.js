// SVG: draws what is laid out.

import {paint, stripe} from "./colours.js";
import {brief, shape, visible} from "./elements.js";
import {lineWidth} from "./graph.js";
import {SIZES, STUB, besideLabel, labelWidth, secondLine, shorten} from "./layout.js";

const MOST_SPOKEN = 300;

/** Draws a box that is open, and gives the groups of what stands in it, by number. */
export function drawInside(box, view, holder, left, top, drawn) {
  const layout = box.layout;
  const lines = shape("g", {class: "lines", "aria-hidden": "true"}), texts = shape("g", {class: "texts", "aria-hidden": "true"});
  // Chromium takes an item for one only if all between it and the tree have these roles.
  const inner = shape("g", {transform: `translate(${left},${top})`, role: box.around ? "group" : "none"});
  holder.append(inner);
  for (const {text, ...place} of layout.heads || []) {
    inner.append(shape("rect", {class: "lane", ...place, rx: 8}),
      shape("text", {class: "second", x: place.x + place.width / 2, y: place.y + 15}, text));
  }
  // Open boxes lie below the lines, closed ones and nodes above.
  const open = box.children.filter((child) => child.isBox && child.open);
  const others = box.children.filter((child) => !(child.isBox && child.open));
  for (const child of open) inner.append(drawThing(child, layout.places.get(child.at), view, drawn));
  inner.append(lines);
  for (const one of layout.lines) drawLine(one, box, lines, texts, drawn);
  for (const child of others) inner.append(drawThing(child, layout.places.get(child.at), view, drawn));
  inner.append(texts);
}

function drawLine({line, label, points, port, at, soft}, box, lines, texts, drawn) {
  const end = port === "out" ? null : drawn.graph.at(line.end);
  const arrives = end && !(end.isBox && end.open);
  const path = shape("path", {
    d: curve(points),
    class: `line${line.tensors.length ? "" : " waits"}${soft ? " soft" : ""}`,
    "stroke-width": (soft ? 1 : lineWidth(line)).toFixed(2),
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
    id: `thing${thing.at}`, role: "treeitem", "aria-level": String(thing.depth),
    "aria-label": spoken(thing, view.mode.text(thing)),
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
    group.append(shape("rect", {class: "head", width, height: SIZES.head, rx: round}));
    drawInside(thing, view, group, 0, 0, drawn);
    // Above the lines that enter through the head.
    group.append(shape("text", {class: "label", x: 26, y: 19}, shorten(thing.label)),
      shape("text", {class: "beside", x: labelWidth(thing), y: 19}, besideLabel(thing)),
      shape("text", {class: "sign", x: 14, y: 19.5}, "−"));
    if (thing.times) drawTurns(thing, width, group);
  } else if (thing.isBox) {
    group.append(shape("text", {class: "label", x: width / 2 + 6, y: 19}, shorten(thing.label)),
      shape("text", {class: "second", x: width / 2, y: 34}, secondLine(thing)),
      shape("text", {class: "sign", x: 13, y: 19.5}, "+"));
  } else {
    const room = thing.circles.length ? 6 : 0;
    const middle = width / 2 + room;
    const below = secondLine(thing);
    group.append(shape("text", {class: "label", x: middle, y: below ? 15 : height / 2 + 4},
      shorten(thing.label)));
    if (below) group.append(shape("text", {class: "second", x: middle, y: 28}, below));
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
      "data-at": String(one.at), role: "treeitem", "aria-level": String(node.depth + 1), "aria-label": spoken(one)});
    dot.append(shape("title", {}, hover(one)));
    if (!drawn.groups.has(one.at)) {
      dot.id = `thing${one.at}`;
      drawn.groups.set(one.at, dot);
    }
    group.append(dot);
  });
}

/** Returns all that a reader of the screen says of a thing, with the words that it is coloured by. */
export function spoken(thing, words = "") {
  const parts = [thing.isBox ? `box ${thing.label}` : thing.label];
  if (thing.class || thing.times) parts.push(thing.class || thing.second);
  if (words && words !== thing.class) parts.push(words);
  if (thing.isBox) parts.push(thing.open ? "open" : "closed", `${thing.inside} ${thing.inside === 1 ? "node" : "nodes"} inside`);
  if (thing.times) parts.push(thing.shows === null ? `all ${thing.times} blocks` : `block ${thing.shows + 1} of ${thing.times}`);
  if (thing.outputs.length === 1) parts.push(`output ${thing.outputs[0] ? thing.outputs[0].sizes : "unknown"}`);
  else if (thing.outputs.length) parts.push(`${thing.outputs.length} outputs`);
  return parts.map((part) => visible(brief(part, MOST_SPOKEN))).join(", ");
}

function hover(thing) {
  const lines = [brief(thing.name, MOST_SPOKEN)];
  if (thing.class) lines.push(thing.class);
  if (thing.outputs.length) lines.push(thing.outputs.slice(0, 6).map((one) => one ? `${one.sizes} ${one.dtype}` : "unknown").join(", "));
  return lines.join("\n");
}
