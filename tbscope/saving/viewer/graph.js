// The graph: boxes and nodes as objects, and the lines among the children of each box.

const ROOT = 0, BOX = 1, NODE = 2, CIRCLE = 3;

/** Gives the things that a page was told of, by number; the first one is the root. */
function readGraph(data) {
  const {words, types} = data, columns = data.things;
  const word = (column, at) => words[columns[column][at]];
  const things = columns.kind.map((kind, at) => ({
    at, kind,
    isBox: kind <= BOX,
    label: word("label", at),
    name: word("name", at),
    class: word("class", at),
    sort: word("sort", at),
    mark: word("mark", at),
    device: word("device", at),
    structure: columns.structure[at],
    outputs: columns.outputs[at].map((number) => readType(types[number])),
    facts: pairs(columns.facts[at]).map(([key, value]) => [words[key], words[value]]),
    figures: {},
    around: null, depth: 0, children: [], inside: 0, open: false,
    reads: [], readers: [], circles: [],
    lines: new Map(), entries: new Map(), exits: new Map(),
    layout: null,
  }));
  for (const [key, {of}] of Object.entries(data.figures)) {
    of.forEach((number, at) => { if (number !== null) things[at].figures[key] = number; });
  }
  for (const thing of things.slice(1)) {
    thing.around = things[columns.around[thing.at]];
    // Boxes come after those around them.
    thing.depth = thing.around.depth + 1;
    if (thing.kind !== CIRCLE) thing.around.children.push(thing);
  }
  for (const thing of things) {
    for (const [source, output] of pairs(columns.reads[thing.at])) {
      const read = {source: things[source], output: Math.max(output, 0), waits: output < 0};
      thing.reads.push(read);
      read.source.readers.push({reader: thing, output: read.output, waits: read.waits});
    }
  }
  for (const thing of things.slice().reverse()) {
    if (thing.kind === NODE) thing.inside = 1;
    if (thing.around) thing.around.inside += thing.inside;
  }
  for (const thing of things) if (thing.kind === NODE) addLines(thing);
  things[0].open = true;
  return things;
}

function pairs(numbers) {
  const found = [];
  for (let at = 0; at < numbers.length; at += 2) found.push([numbers[at], numbers[at + 1]]);
  return found;
}

function readType([elements, sizes, dtype]) {
  return {elements: Number(elements), sizes, dtype};
}

/** Adds the lines that lead to a node; what a circle reads, its reader reads. */
function addLines(node) {
  const seen = new Set([node]);
  const pending = node.reads.slice().reverse();
  while (pending.length) {
    const read = pending.pop(), source = read.source;
    if (source.kind !== CIRCLE) {
      if (source !== node) addLine(source, node, read);
    } else {
      if (!node.circles.includes(source)) node.circles.push(source);
      if (!seen.has(source)) {
        seen.add(source);
        pending.push(...source.reads.slice().reverse());
      }
    }
  }
}

/** Counts an edge in the innermost box around both ends, and at each side of a box on its way. */
function addLine(source, reader, read) {
  const key = read.waits ? "" : `${source.at}:${read.output}`;
  const tensor = source.outputs[read.output] || null;
  const left = [], entered = [];
  let start = source, end = reader;
  while (start.around !== end.around) {
    if (start.around.depth >= end.around.depth) {
      left.push(start);
      start = start.around;
    } else {
      entered.push(end);
      end = end.around;
    }
  }
  join(start.around.lines, start.at, end.at, key, tensor);
  for (const thing of left) join(thing.around.exits, thing.at, end.at, key, tensor);
  for (const thing of entered) join(thing.around.entries, start.at, thing.at, key, tensor);
}

function join(lines, start, end, key, tensor) {
  const name = `${start}>${end}`;
  let line = lines.get(name);
  if (!line) lines.set(name, line = {start, end, tensors: new Map(), waits: 0});
  // A tensor that several nodes read goes along once.
  if (key) line.tensors.set(key, tensor);
  else line.waits += 1;
}

/** Gives what stands beside a line: the sizes of one tensor, or how many there are. */
function lineText(line) {
  const sizes = [...line.tensors.values()].map((tensor) => tensor ? tensor.sizes : "?");
  if (!sizes.length) return "";
  if (sizes.length === 1) return tensorOf(line) ? sizes[0] : "";
  return new Set(sizes).size === 1 && sizes[0] !== "?" ? `${sizes.length} of ${sizes[0]}` : `${sizes.length} tensors`;
}

function tensorOf(line) {
  return line.tensors.values().next().value;
}

/** Gives the width of a line: more for more elements, as the page of TensorBoard does. */
function lineWidth(line) {
  let most = 1;
  for (const tensor of line.tensors.values()) if (tensor) most = Math.max(most, tensor.elements);
  const part = Math.min(1, Math.pow(most / 5e6, 0.3));
  return 1 + 7 * part;
}

/** Gives the boxes around a thing, the outermost first, without the root. */
function boxesAround(thing) {
  const found = [];
  for (let box = thing.around; box && box.around; box = box.around) found.unshift(box);
  return found;
}
