// Colours: what nodes and boxes are filled by, and what the legend tells of it.

// Apart from each other for most eyes, also next to each other; the later ones are paler.
const HUES = [212, 28, 150, 340, 265, 48, 185, 5, 95, 300, 230, 165];
const PLAIN = {hue: 220, vivid: 0};
const MOST_IN_LEGEND = 14;

/** Gives the ways to colour a graph that has something for each of them. */
function colourModes(data, things) {
  const modes = [];
  const byText = (key, title, of) => {
    const counts = new Map();
    for (const thing of things) {
      const text = thing.kind === ROOT || thing.kind === CIRCLE ? "" : of(thing);
      if (text) counts.set(text, (counts.get(text) || 0) + 1);
    }
    if (counts.size) modes.push(wordMode(key, title, of, counts));
  };
  byText("label", "color_by", (thing) => thing.mark);
  byText("class", "class", (thing) => thing.class);
  byText("kind", "kind of operation", (thing) => thing.sort);
  addDefinitions(modes, things);
  byText("dtype", "element type", (thing) => thing.outputs.length ? thing.outputs[0].dtype : "");
  byText("device", "device", (thing) => thing.isBox ? "" : thing.device);
  for (const [key, {title}] of Object.entries(data.figures)) modes.push(figureMode(key, title, things));
  modes.push({key: "none", title: "nothing", of: () => PLAIN, legend: [], text: () => ""});
  return modes;
}

function wordMode(key, title, of, counts) {
  const order = [...counts].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
  const colours = new Map(order.map(([text], place) => [text, hueAt(place)]));
  return {
    key, title,
    text: of,
    of: (thing) => colours.get(of(thing)) || PLAIN,
    legend: order.slice(0, MOST_IN_LEGEND).map(([text, count]) => ({
      text, count, colour: colours.get(text), has: (thing) => of(thing) === text,
    })),
    more: Math.max(0, order.length - MOST_IN_LEGEND),
  };
}

/** Boxes with the same inside have the same colour; what occurs once has none. */
function addDefinitions(modes, things) {
  const counts = new Map(), names = new Map();
  for (const thing of things) {
    if (!thing.structure) continue;
    counts.set(thing.structure, (counts.get(thing.structure) || 0) + 1);
    if (!names.has(thing.structure)) names.set(thing.structure, thing.class || thing.label);
  }
  const several = [...counts].filter(([, count]) => count > 1);
  if (!several.length) return;
  several.sort((one, other) => other[1] - one[1] || one[0] - other[0]);
  const colours = new Map(several.map(([structure], place) => [structure, hueAt(place)]));
  modes.push({
    key: "definition", title: "equal boxes",
    text: (thing) => names.get(thing.structure) || "",
    of: (thing) => colours.get(thing.structure) || PLAIN,
    legend: several.slice(0, MOST_IN_LEGEND).map(([structure, count]) => ({
      text: names.get(structure), count, colour: colours.get(structure),
      has: (thing) => thing.structure === structure,
    })),
    more: Math.max(0, several.length - MOST_IN_LEGEND),
  });
}

function figureMode(key, title, things) {
  const top = things[0].children.map((thing) => thing.figures[key] || 0);
  const most = Math.max(0, ...top) || 1;
  const of = (thing) => {
    const number = thing.figures[key];
    if (number === undefined) return PLAIN;
    return {heat: Math.sqrt(Math.min(1, number / most))};
  };
  const shown = (number) => short(number, key);
  return {
    key, title, of,
    text: (thing) => thing.figures[key] === undefined ? "" : shown(thing.figures[key]),
    scale: {least: "0", most: shown(most)},
    legend: [],
  };
}

function hueAt(place) {
  const round = Math.floor(place / HUES.length);
  return {hue: HUES[place % HUES.length] + 9 * round, vivid: round ? 0.5 : 1};
}

/** Gives a number as people read it: 4.34 G, or of bytes 8.11 MiB. */
function short(number, key) {
  const bytes = key.endsWith("bytes"), step = bytes ? 1024 : 1000;
  const units = bytes ? ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] : ["", "k", "M", "G", "T", "P"];
  let power = 0;
  while (Math.abs(number) >= step && power < units.length - 1) { number /= step; power += 1; }
  const text = power ? number.toPrecision(3) : String(Math.round(number * 100) / 100);
  return units[power] ? `${text} ${units[power]}` : text;
}

/** Sets the colour of an element, which the style sheet makes light or dark. */
function paint(element, colour) {
  if (colour.heat !== undefined) {
    element.classList.add("heat");
    element.style.setProperty("--heat", `${Math.round(colour.heat * 100)}%`);
  } else {
    element.style.setProperty("--hue", String(colour.hue));
    element.style.setProperty("--v", String(colour.vivid));
  }
}

function showLegend(holder, mode, pick) {
  holder.replaceChildren();
  if (!mode.legend.length && !mode.scale) return;
  holder.append(make("h2", {}, mode.title));
  if (mode.scale) {
    holder.append(make("div", {class: "scale"}, make("span", {}, mode.scale.least),
      make("i", {}), make("span", {}, mode.scale.most)));
    return;
  }
  const list = make("ul");
  for (const entry of mode.legend) {
    const swatch = make("i");
    paint(swatch, entry.colour);
    const button = make("button", {"aria-pressed": "false", title: entry.text}, swatch,
      make("span", {}, shorten(entry.text)), make("small", {}, String(entry.count)));
    button.addEventListener("click", () => pick(entry, button));
    list.append(make("li", {}, button));
  }
  holder.append(list);
  if (mode.more) holder.append(make("small", {}, `and ${mode.more} more`));
}

/** Makes an element; what stands in it is put there as text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
