// Ranks: those of a distributed run as columns side by side, and what they do together as bars below
// them, each as wide as the columns that it joins.

import {emptyLane, moveInto} from "./lanes.js";

const COLUMN_GAP = 44, BAR_GAP = 34, BETWEEN = 9;
const JOINT = -1;

/** Lays out a box with several ranks; what it is given is that of `layOutLanes`. */
export function layOutRanks(box, up, {side, foot, head}, layOut) {
  const columns = ranksOf(box), against = up !== box.back;
  for (const column of columns) layOut(column, up);
  const layout = {up, width: 0, height: 0, places: new Map(), lines: [], ports: new Map()};
  const bars = box.children.filter(({rank}) => rank === JOINT);
  const isFirst = (bar) => !box.lines.some(({start, end}) => end === bar.at && start !== bar.at);
  // What all ranks read is before them; the others are after them, in the order of the run.
  const before = bars.filter(isFirst), after = bars.filter((bar) => !isFirst(bar));
  const rows = [...before.map((bar) => [bar]), columns, ...after.map((bar) => [bar])];
  const form = new Map(bars.map((bar) => [bar, barForm(bar, box, up, layOut)]));
  let left = side;
  const lefts = columns.map(({layout: own}) => { const at = left; left += own.width + COLUMN_GAP; return at; });
  const total = left - COLUMN_GAP - side;
  const widest = Math.max(total, ...[...form.values()].map(({width}) => width));
  const middle = side + widest / 2, shift = (widest - total) / 2;
  let y = head + foot;
  for (const row of against ? rows.reverse() : rows) {
    if (row === columns) {
      columns.forEach((column, at) => moveInto(layout, column.layout, lefts[at] + shift, y));
      y += Math.max(...columns.map((column) => column.layout.height)) + BAR_GAP;
    } else {
      const {width, height} = form.get(row[0]);
      layout.places.set(row[0].at, {x: middle, y: y + height / 2, width, height});
      y += height + BAR_GAP;
    }
  }
  layout.width = widest + 2 * side;
  layout.height = y - BAR_GAP + foot;
  for (const bar of bars) widen(bar, box, layout);
  for (const {port, points} of layout.lines) {
    if (port) points[port === "in" ? 0 : points.length - 1].y = (port === "in") === against ? layout.height : 0;
  }
  const rankOf = new Map(box.children.map(({at, rank}) => [at, rank])), count = new Map();
  for (const line of box.lines) {
    const start = rankOf.get(line.start), end = rankOf.get(line.end);
    if (start === end && start !== JOINT) continue;
    layout.lines.push(joint(line, start, end, layout, count));
  }
  return layout;
}

function ranksOf(box) {
  const columns = [];
  for (const child of box.children) {
    if (child.rank === JOINT) continue;
    columns[child.rank] = columns[child.rank] || emptyLane(box, box.back);
    columns[child.rank].children.push(child);
  }
  const rankOf = new Map(box.children.map(({at, rank}) => [at, rank]));
  const of = (at) => columns[rankOf.get(at)];
  for (const line of box.lines) if (of(line.start) && of(line.start) === of(line.end)) of(line.start).lines.push(line);
  for (const line of box.entries) if (of(line.end)) of(line.end).entries.push(line);
  for (const line of box.exits) if (of(line.start)) of(line.start).exits.push(line);
  return columns.filter((column) => column);
}

function barForm(bar, box, up, layOut) {
  const lane = emptyLane(box, box.back);
  lane.children.push(bar);
  const {width, height} = layOut(lane, up).places.get(bar.at);
  return {width, height};
}

/** Makes a bar as wide as from the first to the last column that it joins. */
function widen(bar, box, layout) {
  const place = layout.places.get(bar.at);
  const joined = box.lines.filter(({start, end}) => start === bar.at || end === bar.at)
    .map(({start, end}) => layout.places.get(start === bar.at ? end : start));
  if (joined.length < 2 || (bar.isBox && bar.open)) return;
  const left = Math.min(...joined.map(({x, width}) => x - width / 2));
  const right = Math.max(...joined.map(({x, width}) => x + width / 2));
  if (right - left > place.width) Object.assign(place, {x: (left + right) / 2, width: right - left});
}

/** Draws a line between a rank and what joins it with others, or from rank to rank. */
function joint(line, start, end, layout, count) {
  const one = layout.places.get(line.start), other = layout.places.get(line.end);
  const drawn = (points) => ({line, label: "", port: "", points, at: null});
  if (start !== JOINT && end !== JOINT) {
    const way = Math.sign(other.x - one.x);
    return drawn([{x: one.x + way * one.width / 2, y: one.y}, {x: other.x - way * other.width / 2, y: other.y}]);
  }
  const below = Math.sign(other.y - one.y);
  const ends = (x) => [{x, y: one.y + below * one.height / 2}, {x, y: other.y - below * other.height / 2}];
  if (start === JOINT && end === JOINT) return drawn(ends(Math.max(one.x, other.x)));
  // The lines of one rank are side by side, from its left edge on.
  const rank = start === JOINT ? other : one, at = count.get(rank) || 0;
  count.set(rank, at + 1);
  return drawn(ends(rank.x - rank.width / 2 + BETWEEN * (at + 1) % Math.max(rank.width - BETWEEN, BETWEEN)));
}
