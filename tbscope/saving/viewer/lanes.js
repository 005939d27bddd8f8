// Lanes: the stages of a training step side by side. Forward leads down, the backward pass beside
// it up again, so that a gradient is level with what it is a gradient of; the optimizer follows.

const LANE_GAP = 50, LANE_PAD = 14, ROUND_GAP = 46, LANE_HEAD = 30;
const LANE_TITLES = ["Forward", "Backward", "Update"];
const FORWARD = 0, BACKWARD = 1;

/**
 * Lays out a box with stages.
 *
 * @param {object} box - The box, whose children have lanes.
 * @param {boolean} up - Whether the forward pass leads up.
 * @param {object} frame - The room around: `side`, `foot` and `head`.
 * @param {Function} layOut - Lays out a box, or a lane as if it were one.
 */
export function layOutLanes(box, up, frame, layOut) {
  const lanes = lanesOf(box);
  const laneOf = new Map(lanes.flatMap((lane) => lane.children.map((child) => [child.at, lane])));
  const order = new Map(box.children.map((child, place) => [child.at, place]));
  const thingAt = (at) => box.children[order.get(at)];
  // That an optimizer reads what it updates goes without saying.
  const isBeside = ({start, end}) => thingAt(end).counterparts.some(([counterpart]) => counterpart === start);
  const between = [];
  for (const line of box.lines) {
    const start = laneOf.get(line.start), end = laneOf.get(line.end);
    if (start === end) start.lines.push(line);
    else if (isNext(start, end)) between.push(line);
    else if (!isBeside(line)) addStub(end, line.end, line, thingAt(line.start).label);
  }
  // What enters goes to the forward pass at the top; what leaves comes from the last of it.
  for (const line of box.entries) {
    const lane = laneOf.get(line.end);
    if (lane === lanes[0]) lane.entries.push(line);
    else addStub(lane, line.end, line, line.name);
  }
  const last = lanes.findLast(({column}) => column === FORWARD);
  for (const line of box.exits) {
    const lane = laneOf.get(line.start);
    if (lane === last) lane.exits.push(line);
  }
  for (const lane of lanes) {
    const forward = lanes.find(({round, column}) => round === lane.round && column === FORWARD);
    const [pass] = lane.children;
    if (lane.column === BACKWARD && forward && pass.open) layOutBeside(forward, pass, up, layOut);
  }
  for (const lane of lanes) layOut(lane, up);
  const main = new Map();
  for (const line of between) {
    // A backward pass begins at the loss, the last of what it reads; the rest was saved for it.
    const known = main.get(line.end);
    if (!known || order.get(line.start) > order.get(known.start)) main.set(line.end, line);
  }
  for (const line of between) line.soft = laneOf.get(line.start).column === FORWARD && main.get(line.end) !== line;
  return joined(lanes, between, up, frame);
}

function lanesOf(box) {
  const lanes = new Map();
  for (const child of box.children) {
    const {round, column} = child.lane, key = 3 * round + column;
    if (!lanes.has(key)) {
      lanes.set(key, {...emptyLane(box, column === BACKWARD), round, column});
    }
    lanes.get(key).children.push(child);
  }
  for (const lane of lanes.values()) lane.hasRanks = lane.children.filter(({rank}) => rank !== null && rank >= 0).length > 1;
  return [...lanes.entries()].sort(([one], [other]) => one - other).map(([, lane]) => lane);
}

/** Returns a part of a box that is laid out as if it were one. */
export function emptyLane(around, back) {
  return {around, back, isLane: true, children: [], lines: [], entries: [], exits: [], stubs: [], layout: null};
}

function isNext(start, end) {
  return start.round === end.round && end.column === start.column + 1;
}

function addStub(lane, at, line, text) { lane.stubs.push({at, line, text}); }

// -- gradients beside what they are of -------------------------------------------------------

/** Lays out two boxes, one the counterpart of the other, so that counterparts in them are level. */
function layOutBeside(one, other, up, layOut) {
  const known = one.layout && other.layout;
  if (known && one.layout.beside === other && other.layout.beside === one && one.layout.up === up) return;
  one.layout = other.layout = null;
  const pairs = pairsOf(one, other);
  for (const [child, counterpart] of pairs) if (child.open && counterpart.open) layOutBeside(child, counterpart, up, layOut);
  level(layOut(one, up), layOut(other, up), pairs);
  one.layout.beside = other;
  other.layout.beside = one;
}

function pairsOf(one, other) {
  const counterparts = new Map(other.children.map((counterpart) => [counterpart.at, counterpart]));
  const pairs = [];
  for (const child of one.children) {
    const found = child.counterparts.find(([at]) => counterparts.has(at));
    if (found) pairs.push([child, counterparts.get(found[0])]);
  }
  return pairs;
}

/** Stretches two layouts so that the places of each pair are at one height. */
function level(one, other, pairs) {
  const rows = pairs.map(([child, counterpart]) => [one.places.get(child.at).y, other.places.get(counterpart.at).y])
    .sort(([first], [second]) => first - second);
  const knots = [[0, 0, 0]];
  for (const [y, beside] of [...rows, [one.height, other.height]]) {
    const [lastY, lastBeside, at] = knots[knots.length - 1];
    // What runs in another order than its counterparts cannot be level with all of them.
    if (y > lastY && beside > lastBeside) knots.push([y, beside, at + Math.max(y - lastY, beside - lastBeside)]);
  }
  stretch(one, knots.map(([y, , at]) => [y, at]));
  stretch(other, knots.map(([, y, at]) => [y, at]));
}

function stretch(layout, knots) {
  const moved = (y) => {
    let place = knots.findIndex(([from]) => from >= y);
    if (place < 0) place = knots.length - 1;
    if (place === 0) return y;
    const [low, lowTo] = knots[place - 1], [high, highTo] = knots[place];
    return lowTo + (y - low) * (highTo - lowTo) / (high - low);
  };
  const shifts = new Map([...layout.places].map(([at, {y}]) => [at, moved(y) - y]));
  for (const drawn of layout.lines) {
    const {points, line, port} = drawn, end = points.length - 1;
    // Ends stay where they touch.
    const shift = [port === "in" ? null : shifts.get(line.start), port === "out" ? null : shifts.get(line.end)];
    drawn.points = points.map(({x, y}, at) => {
      const own = at === 0 ? shift[0] : at === end ? shift[1] : null;
      return {x, y: own === null || own === undefined ? moved(y) : y + own};
    });
    if (drawn.at) drawn.at = {x: drawn.at.x, y: moved(drawn.at.y)};
  }
  for (const [at, place] of layout.places) place.y += shifts.get(at);
  layout.height = moved(layout.height);
}

// -- all lanes in one box --------------------------------------------------------------------

function joined(lanes, between, up, {side, foot, head}) {
  const wide = [0, 0, 0], rounds = new Map();
  for (const lane of lanes) {
    wide[lane.column] = Math.max(wide[lane.column], lane.layout.width);
    rounds.set(lane.round, [...rounds.get(lane.round) || [], lane]);
  }
  const lefts = [];
  let right = side;
  for (const [column, width] of wide.entries()) {
    lefts[column] = right + LANE_PAD;
    if (width) right += width + 2 * LANE_PAD + LANE_GAP;
  }
  const layout = {up, width: right - LANE_GAP + side, height: 0, places: new Map(), lines: [], ports: new Map(), heads: []};
  const rows = [...rounds.values()];
  if (up) rows.reverse();
  let y = head + LANE_HEAD;
  for (const row of rows) {
    placeRow(row, y, lefts, wide, up, layout);
    y += Math.max(...row.map((lane) => lane.layout.height)) + ROUND_GAP;
  }
  layout.height = y - ROUND_GAP + LANE_PAD + foot;
  wide.forEach((width, column) => {
    if (!width) return;
    layout.heads.push({text: LANE_TITLES[column], x: lefts[column] - LANE_PAD, y: head + 4,
      width: width + 2 * LANE_PAD, height: layout.height - head - foot});
  });
  for (const {port, points} of layout.lines) {
    if (port) points[port === "in" ? 0 : points.length - 1].y = (port === "in") === up ? layout.height : 0;
  }
  for (const line of between) layout.lines.push(across(line, layout));
  return layout;
}

function placeRow(row, top, lefts, wide, up, layout) {
  const height = Math.max(...row.map((lane) => lane.layout.height));
  let middle = height / 2;
  for (const lane of row) {
    const own = lane.layout, [first] = lane.children;
    const counterparts = lane.column === BACKWARD ? row[0].children.filter(({at}) =>
      first.counterparts.some(([counterpart]) => counterpart === at)).map(({at}) => row[0].layout.places.get(at).y) : [];
    // A closed box of gradients is beside what it is of, and what follows is beside that.
    if (counterparts.length) middle = counterparts.reduce((sum, one) => sum + one, 0) / counterparts.length;
    const rest = height - own.height;
    const shift = lane.column === FORWARD ? (up ? rest : 0) : Math.max(0, Math.min(rest, middle - own.height / 2));
    const x = lefts[lane.column] + (wide[lane.column] - own.width) / 2, y = top + shift;
    moveInto(layout, own, x, y);
  }
}

/** Puts the layout of a lane into that of the box around it. */
export function moveInto(layout, own, x, y) {
  const moved = (point) => ({x: point.x + x, y: point.y + y});
  for (const [at, place] of own.places) layout.places.set(at, {...place, ...moved(place)});
  for (const drawn of own.lines) {
    layout.lines.push({...drawn, points: drawn.points.map(moved), at: drawn.at && moved(drawn.at)});
  }
  for (const [name, port] of own.ports) layout.ports.set(name, port + x);
}

/** Draws a line from one lane to the next: what a loss gives, or a gradient; softly what is saved. */
function across(line, layout) {
  const start = layout.places.get(line.start), end = layout.places.get(line.end);
  const from = {x: start.x + start.width / 2, y: start.y};
  const to = {x: end.x - end.width / 2, y: end.y};
  const least = end.y - end.height / 2 + 8, most = end.y + end.height / 2 - 8;
  const {soft} = line;
  if (from.y >= least && from.y <= most) to.y = from.y;
  const half = (from.x + to.x) / 2;
  const beyond = from.y < least || from.y > most;
  const points = beyond && !soft
    ? [from, {x: end.x, y: from.y}, {x: end.x, y: from.y > most ? end.y + end.height / 2 : end.y - end.height / 2}]
    : [from, {x: half, y: from.y}, {x: half, y: to.y}, to];
  return {line, label: "", port: "", points, at: null, soft};
}
