// Colours: what nodes and boxes are filled by, and what the legend shows of it.

import {pairs} from "./graph.js";
import {shorten} from "./layout.js";
import {make, shape} from "./elements.js";

// Apart from each other for most eyes, also next to each other; the later ones are paler.
const HUES = [212, 28, 150, 340, 265, 48, 185, 5, 95, 300, 230, 165];
const PLAIN = {hue: 220, vivid: 0};
const MOST_IN_LEGEND = 14;
const TITLES = {
  label: "color_by", class: "class", kind: "kind of operation", dtype: "element type", device: "device",
};

/** Returns the ways to colour a graph, by what its first answer says that it has. */
export function colourModes(head, words) {
  const modes = [];
  const add = (key) => {
    if (!(key in head.modes)) return;
    modes.push(wordMode(key, pairs(head.modes[key]).map(([text, count]) => [words[text], count])));
  };
  for (const key of ["label", "class", "kind"]) add(key);
  addDefinitions(modes, head, words);
  for (const key of ["dtype", "device"]) add(key);
  for (const [key, {title, most}] of Object.entries(head.figures)) modes.push(figureMode(key, title, most));
  modes.push({key: "none", title: "nothing", of: () => PLAIN, legend: [], text: () => ""});
  return modes;
}

function wordMode(key, order) {
  const colours = new Map(order.map(([text], place) => [text, hueAt(place)]));
  const of = (thing) => thing.texts[key] || "";
  return {
    key, title: TITLES[key],
    text: of,
    // A box that is none of these itself shows what is in it, by shares.
    shares: (box) => {
      if (of(box)) return [];
      const found = new Map(box.shares[key]), total = [...found.values()].reduce((sum, count) => sum + count, 0);
      return order.filter(([text]) => found.has(text))
        .map(([text]) => ({colour: colours.get(text), part: found.get(text) / total}));
    },
    of: (thing) => colours.get(of(thing)) || PLAIN,
    legend: order.slice(0, MOST_IN_LEGEND).map(([text, count]) => ({
      text, count, colour: colours.get(text), has: (thing) => of(thing) === text,
      below: (box) => box.below[key].has(text),
    })),
    more: Math.max(0, order.length - MOST_IN_LEGEND),
  };
}

/** Boxes with the same inside have the same colour; a box whose inside occurs once has none. */
function addDefinitions(modes, head, words) {
  const several = [];
  for (let at = 0; at < head.equal.length; at += 3) {
    const [structure, title, count] = head.equal.slice(at, at + 3);
    several.push([structure, words[title], count]);
  }
  if (!several.length) return;
  const colours = new Map(several.map(([structure], place) => [structure, hueAt(place)]));
  const names = new Map(several);
  modes.push({
    key: "definition", title: "equal boxes",
    text: (thing) => names.get(thing.structure) || "",
    of: (thing) => colours.get(thing.structure) || PLAIN,
    legend: several.slice(0, MOST_IN_LEGEND).map(([structure, text, count]) => ({
      text, count, colour: colours.get(structure),
      has: (thing) => thing.structure === structure, below: (box) => box.same.has(structure),
    })),
    more: Math.max(0, several.length - MOST_IN_LEGEND),
  });
}

function figureMode(key, title, most) {
  const of = (thing) => {
    const number = thing.figures[key];
    if (number === null || number === undefined) return PLAIN;
    return {heat: Math.sqrt(Math.min(1, number / most))};
  };
  return {key, title, of, text: () => "", scale: {least: "0", most: short(most, key)}, legend: []};
}
function hueAt(place) {
  const round = Math.floor(place / HUES.length);
  return {hue: HUES[place % HUES.length] + 9 * round, vivid: round ? 0.5 : 1};
}

/** Gives a number as people read it: 4.34 G, or of bytes 8.11 MiB. */
export function short(number, key) {
  const bytes = key.endsWith("bytes"), step = bytes ? 1024 : 1000;
  const units = bytes ? ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] : ["", "k", "M", "G", "T", "P"];
  let power = 0;
  while (Math.abs(number) >= step && power < units.length - 1) { number /= step; power += 1; }
  const text = power ? number.toPrecision(3) : String(Math.round(number * 100) / 100);
  return units[power] ? `${text} ${units[power]}` : text;
}

/** Sets the stripes of a closed box: each colour as wide as its share. */
export function stripe(group, body, parts, id) {
  const gradient = shape("linearGradient", {id});
  let start = 0;
  for (const {colour, part} of parts) {
    for (const offset of [start, start + part]) {
      const stop = shape("stop", {offset: offset.toFixed(4)});
      paint(stop, colour);
      gradient.append(stop);
    }
    start += part;
  }
  group.append(gradient);
  body.style.fill = `url(#${id})`;
}

/** Sets the colour of an element, which the style sheet makes light or dark. */
export function paint(element, colour) {
  if (colour.heat !== undefined) {
    element.classList.add("heat");
    element.style.setProperty("--heat", `${Math.round(colour.heat * 100)}%`);
  } else {
    element.style.setProperty("--hue", String(colour.hue));
    element.style.setProperty("--v", String(colour.vivid));
  }
}

export function showLegend(holder, mode, pick) {
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

