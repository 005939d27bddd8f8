// The graph: boxes and nodes as objects, and the lines among the children of each open box.

export const ROOT = 0, BOX = 1, NODE = 2, CIRCLE = 3;

/** The boxes and nodes that a source has sent so far. */
export class Graph {
  /**
   * @param {object} source - `level(number)`, `card(number)` and `index()` return promises of
   *   answers, each with its own "words".
   * @param {object} head - The first answer, with the level of the root.
   * @param {string[]} words - The texts of the first answer.
   */
  constructor(source, head, words) {
    this.source = source;
    this.head = head;
    // Of two graphs that are compared, the lines of what differs.
    this.differences = head.differences.map(([line, at]) => ({text: words[line], at}));
    this.root = makeThing(0, ROOT, null);
    this.root.inside = head.nodes;
    this.root.open = true;
    this.things = new Map([[0, this.root]]);
    this.cards = new Map([[0, readCard(head.root, words)]]);
    this.pending = new Map();
    this.root.figures = this.cards.get(0).figures;
    for (const level of head.levels) this.addLevel(level, words);
    // A box that is alone says little: its level comes with the first answer, and it is open.
    this.first = head.levels.map(({box}) => this.things.get(box)).filter((box) => box !== this.root);
    for (const box of this.first) box.open = true;
  }

  at(number) { return this.things.get(number); }

  /** Returns a promise of a box with its level. */
  load(box) {
    if (box.children) return Promise.resolve(box);
    return this.once(`level ${box.at}`, async () => {
      const {words, level} = await this.source.level(box.at);
      this.addLevel(level, words);
      return box;
    });
  }

  /** Returns a promise of the card of a thing. */
  async card(thing) {
    const known = this.cards.get(thing.at);
    if (known) return known;
    return this.once(`card ${thing.at}`, async () => {
      const {words, card} = await this.source.card(thing.at);
      this.cards.set(thing.at, readCard(card, words));
      return this.cards.get(thing.at);
    });
  }

  /** Returns a promise of the columns by which everything is found. */
  index() {
    return this.once("index", async () => {
      const {words, index} = await this.source.index();
      const texts = (column) => index[column].map((number) => words[number]);
      const lists = (column) => index[column].map((numbers) => numbers.map((number) => words[number]));
      return {
        around: index.around, name: texts("name"), label: texts("label"), class: texts("class"),
        kind: texts("kind"), outputs: lists("outputs"), facts: lists("facts"),
      };
    });
  }

  /** Returns a promise of the table of modules: a column for each property. */
  modules() {
    return this.once("modules", async () => {
      const {words, modules} = await this.source.modules();
      const texts = (column) => modules[column].map((number) => words[number]);
      return {...modules, name: texts("name"), class: texts("class"), output: texts("output")};
    });
  }

  /** Returns a promise of the notes, and of the functions with their uses. */
  record() {
    return this.once("record", async () => {
      const {words, record: {notes, heads, bodies, uses}} = await this.source.record();
      return {
        notes: notes.map((note) => words[note]),
        functions: heads.map((head, place) => ({
          head: words[head], body: words[bodies[place]],
          uses: pairs(uses[place]).map(([at, name]) => ({at, name: words[name]})),
        })),
      };
    });
  }

  /** Returns a promise of the thing with a number, after the levels around it were loaded. */
  async reach(number) {
    if (!this.things.has(number)) {
      const {around} = await this.index();
      await this.load(await this.reach(around[number]));
    }
    return this.at(number);
  }

  /**
   * Returns a promise of the number of the thing with a name, or -1 if there is none.
   *
   * A text about the code has the name of a module with dots, and without the outermost box.
   */
  async find(name) {
    for (const thing of this.things.values()) if (thing.name === name) return thing.at;
    const {name: names} = await this.index(), path = name.replaceAll(".", "/");
    const at = [names.indexOf(name), names.indexOf(path)].find((number) => number >= 0);
    return at === undefined ? names.findIndex((one) => path && one.endsWith(`/${path}`)) : at;
  }

  once(key, work) {
    if (!this.pending.has(key)) {
      const answer = work();
      this.pending.set(key, answer);
      // A request that failed is made again when it is asked for again.
      answer.catch(() => this.pending.delete(key));
    }
    return this.pending.get(key);
  }

  addLevel(level, words) {
    const box = this.at(level.box);
    const found = level.at.map((at, row) => this.readThing(level, row, words));
    found.forEach((thing, row) => {
      thing.circles = level.circles[row].map((at) => this.at(at));
    });
    const children = found.slice(0, level.children);
    for (const child of children) {
      child.around = box;
      child.depth = box.depth + 1;
    }
    for (const node of children) {
      for (const circle of node.circles) if (!circle.around) circle.around = box;
    }
    const read = (lines) => lines.map((line) => readLine(line, words));
    children.forEach((child, row) => {
      const [round, column] = level.lanes[row] || [0, 0];
      child.lane = {round, column};
      child.rank = level.columns.length ? level.columns[row] : null;
    });
    box.hasLanes = level.lanes.length > 0;
    box.hasRanks = level.columns.length > 0;
    box.back = level.back;
    box.level = {children, lines: read(level.lines), entries: read(level.entries), exits: read(level.exits)};
    for (const {start, tensors} of [...box.level.lines, ...box.level.exits]) {
      const child = this.at(start);
      if (!child.isBox) continue;
      // The same tensor may go to several readers.
      const isNew = (tensor) => tensor && !child.outputs.some((one) => one.sizes === tensor.sizes && one.dtype === tensor.dtype);
      for (const tensor of tensors) if (isNew(tensor)) child.outputs.push(tensor);
    }
    showBlock(box, box.times ? 0 : null);
  }

  readThing(level, row, words) {
    const known = this.things.get(level.at[row]);
    // A circle at the nodes of several boxes comes with each of their levels.
    if (known) return known;
    const thing = makeThing(level.at[row], level.kind[row], null);
    this.things.set(thing.at, thing);
    thing.label = words[level.label[row]];
    thing.name = words[level.name[row]];
    thing.class = words[level.class[row]];
    thing.second = words[level.second[row]];
    thing.structure = level.structure[row];
    thing.inside = level.inside[row];
    thing.size = level.size[row];
    thing.times = level.times[row];
    thing.counterparts = level.counterparts[row];
    thing.outputs = level.outputs[row].map((type) => readType(type, words));
    for (const [mode, column] of Object.entries(level.texts)) thing.texts[mode] = words[column[row]];
    for (const [key, column] of Object.entries(level.figures)) thing.figures[key] = column[row];
    if (thing.isBox) {
      for (const [mode, shares] of Object.entries(level.shares[row])) {
        thing.shares[mode] = pairs(shares).map(([number, count]) => [words[number], count]);
      }
      for (const [mode, below] of Object.entries(level.below[row])) {
        thing.below[mode] = new Set(below.map((number) => words[number]));
      }
      thing.same = new Set(level.same[row]);
    }
    return thing;
  }
}

function makeThing(at, kind, around) {
  return {
    at, kind, around, isBox: kind <= BOX, depth: 0, label: "", name: "", class: "", second: "",
    structure: 0, inside: 0, size: 0, times: 0, shows: null, outputs: [], texts: {}, figures: {}, shares: {}, below: {},
    same: new Set(), circles: [], open: false, level: null, children: null, lines: [],
    counterparts: [], lane: null, rank: null, hasLanes: false, hasRanks: false, back: false,
    entries: [], exits: [], layout: null,
  };
}

function readCard(card, words) {
  return {
    facts: pairs(card.facts).map(([key, value]) => [words[key], words[value]]),
    outputs: card.outputs.map((type) => readType(type, words)),
    device: words[card.device],
    links: card.links.map(([title, numbers]) => ({
      title: words[title],
      of: triples(numbers).map(([at, name, text]) => ({at, name: words[name], text: words[text]})),
    })),
    figures: card.figures,
  };
}

function readLine([start, end, how, types, name], words) {
  const tensors = types.map((type) => readType(type, words));
  return {start, end, waits: Boolean(how & 1), crosses: Boolean(how & 2), tensors, name: words[name]};
}

function readType(type, words) {
  if (!type.length) return null;
  const [elements, sizes, dtype] = type;
  return {elements, sizes: words[sizes], dtype: words[dtype]};
}

export function pairs(numbers) {
  const found = [];
  for (let at = 0; at < numbers.length; at += 2) found.push([numbers[at], numbers[at + 1]]);
  return found;
}

function triples(numbers) {
  const found = [];
  for (let at = 0; at < numbers.length; at += 3) found.push(numbers.slice(at, at + 3));
  return found;
}

/**
 * Shows one of the equal blocks in a box, by its place among them, or all of them for null.
 *
 * The lines between the shown block and the others enter it, or leave it.
 */
export function showBlock(box, place) {
  box.shows = place;
  box.layout = null;
  if (place === null) {
    Object.assign(box, box.level);
    return;
  }
  const {children, lines, entries, exits} = box.level, size = children.length / box.times;
  box.children = children.slice(place * size, (place + 1) * size);
  const shown = new Set(box.children.map(({at}) => at));
  const names = new Map(children.map(({at, label}) => [at, label]));
  const starts = ({start}) => shown.has(start), ends = ({end}) => shown.has(end);
  box.lines = lines.filter((line) => starts(line) && ends(line));
  box.entries = [...entries.filter(ends), ...lines.filter((line) => ends(line) && !starts(line))
    .map((line) => ({...line, name: names.get(line.start)}))];
  box.exits = [...exits.filter(starts), ...lines.filter((line) => starts(line) && !ends(line))
    .map((line) => ({...line, name: names.get(line.end)}))];
}

/** Returns the place of the block in which a child of a box of equal blocks is. */
export function blockOf(box, child) {
  return Math.floor(box.level.children.indexOf(child) / (box.level.children.length / box.times));
}

/** Returns what is drawn for a thing: a circle is drawn at the node that reads it. */
export function shownFor(thing) {
  if (thing.kind !== CIRCLE) return thing;
  return thing.around.level.children.find((node) => node.circles.includes(thing)) || thing;
}

/** Returns the text beside a line: the sizes of one tensor, or how many there are. */
export function lineText(line) {
  const sizes = line.tensors.map((tensor) => tensor ? tensor.sizes : "?");
  if (!sizes.length) return "";
  if (sizes.length === 1) return line.tensors[0] ? sizes[0] : "";
  return new Set(sizes).size === 1 && sizes[0] !== "?" ? `${sizes.length} of ${sizes[0]}` : `${sizes.length} tensors`;
}

/** Returns the width of a line: more for more elements, as the page of TensorBoard does. */
export function lineWidth(line) {
  let most = 1;
  for (const tensor of line.tensors) if (tensor) most = Math.max(most, tensor.elements);
  const part = Math.min(1, Math.pow(most / 5e6, 0.3));
  return 1 + 7 * part;
}

/** Returns the boxes around a thing, the outermost first, without the root. */
export function boxesAround(thing) {
  const found = [];
  for (let box = thing.around; box && box.around; box = box.around) found.unshift(box);
  return found;
}
