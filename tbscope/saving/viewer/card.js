// The card: all that is known of what is selected, in the order in which the page of TensorBoard
// shows it.

import {short} from "./colours.js";
import {breakable, brief, copyText, make} from "./elements.js";
import {boxesAround} from "./graph.js";

// The lines of the user's code: that of a call, and that of the class of a module.
const SOURCES = {source: "", defined: "class: "};
const SOURCE = /^(.+:\d+) in /;
const NUMBER = /^-?[\d.,]+( ?[kMGTPE])?( ?[KMGTPE]?i?B)?( \([\d,]+\))?$/;
const MOST_LINKS = 24, FEW_LINKS = 6;

/** Shows the card of a thing once it is there; of a thing selected since, another call shows it. */
export async function showCard(holder, thing, view) {
  const {graph} = view;
  const card = graph.cards.get(thing.at) || await graph.card(thing);
  if (view.selected !== thing) return;
  holder.replaceChildren();
  holder.scrollTop = 0;
  if (thing === graph.root) {
    holder.append(make("h2", {}, graph.head.title || "graph"));
    if (graph.differences.length) holder.append(section("Difference", differences(view)));
  } else {
    holder.append(path(thing, view));
    holder.append(make("h2", {}, thing.label));
    if (thing.class) holder.append(make("p", {class: "class"}, thing.class));
  }
  for (const [key, value] of card.facts) if (isSource(key, value)) holder.append(sourceLine(SOURCES[key], value));
  if (thing === graph.root) showWhole(holder, view, card);
  if (thing.isBox && thing !== graph.root) {
    const button = make("button", {class: "toggle"}, thing.open ? "Close" : "Open");
    button.addEventListener("click", () => view.toggle(thing));
    holder.append(button, make("p", {}, `${thing.inside.toLocaleString("en")} nodes inside`));
  }
  const {outputs} = card;
  if (outputs.length) {
    const rows = outputs.map((one, at) =>
      [outputs.length > 1 ? String(at) : "", one ? `${one.sizes}  ${one.dtype}` : "?"]);
    addTable(holder, outputs.length > 1 ? "Outputs" : "Output", rows.slice(0, MOST_LINKS));
  }
  const others = card.facts.filter(([key, value]) => !isSource(key, value));
  if (others.length) addTable(holder, "Attributes", others);
  if (card.device) addTable(holder, "Device", [["", card.device]]);
  for (const {title, of} of card.links) {
    addLinks(holder, title, of, view, title === "Boxes with the same inside" ? FEW_LINKS : MOST_LINKS);
  }
}

/** Lists what differs between two graphs; a line that names a part leads there. */
function differences(view) {
  return make("ul", {class: "differences"}, ...view.graph.differences.map(({text, at}) =>
    make("li", {}, at < 0 ? text : link({at, name: ""}, view, text))));
}

function showWhole(holder, view, card) {
  const {head} = view.graph;
  const rows = [["nodes", head.nodes.toLocaleString("en")], ["boxes", head.boxes.toLocaleString("en")]];
  for (const [key, {title}] of Object.entries(head.figures)) {
    if (card.figures[key] !== null) rows.push([title, short(card.figures[key], key)]);
  }
  addTable(holder, "The whole", rows);
  if (head.notes.length) {
    const list = make("ul", {class: "notes"}, ...head.notes.map((note) => make("li", {}, note)));
    holder.append(section("Notes", list));
  } else {
    const button = make("button", {}, "Show notes");
    button.addEventListener("click", () => view.showPanel("notes"));
    holder.append(section("Notes", button));
  }
}

function isSource(key, value) {
  return key in SOURCES && SOURCE.test(value);
}

/** Shows a place in the user's code, `net.py:12 in forward`, and copies what an editor opens. */
function sourceLine(title, text) {
  const [, place] = SOURCE.exec(text);
  const button = make("button", {title: `Copy ${place}`}, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = await copyText(place) ? "Copied" : "Refused";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return make("p", {class: "source"}, make("span", {}, title, make("code", {}, ...breakable(text, /(?<=[_/])/))), button);
}

function path(thing, view) {
  const line = make("p", {class: "path"});
  for (const box of boxesAround(thing)) line.append(link(box, view, box.label), " / ");
  return line;
}

function link({at, name}, view, text) {
  const anchor = make("a", {href: `#${encodeURIComponent(brief(name, 1000))}`, title: brief(name, 1000)}, text);
  anchor.addEventListener("click", (event) => { event.preventDefault(); view.show(at, {jump: true}); });
  return anchor;
}

function section(title, ...content) {
  return make("section", {}, make("h3", {}, title), ...content);
}

function addTable(holder, title, rows) {
  const table = make("table", rows.every(([, value]) => NUMBER.test(value)) ? {class: "numbers"} : {});
  for (const [key, value] of rows) {
    const row = make("tr");
    if (key) row.append(make("th", {scope: "row"}, ...breakable(key)));
    row.append(make("td", key ? {} : {colspan: "2"}, ...breakable(value)));
    table.append(row);
  }
  holder.append(section(title, table));
}

function addLinks(holder, title, links, view, most) {
  const list = make("ul", {class: "links"});
  const rest = links.length - most;
  const show = (some) => list.append(...some.map((one) =>
    make("li", {}, link(one, view, one.name), make("small", {}, one.text))));
  show(links.slice(0, most));
  holder.append(section(`${title} (${links.length})`, list));
  if (rest > 0) {
    const button = make("button", {}, `Show ${rest} more`);
    button.addEventListener("click", () => { show(links.slice(most)); button.remove(); });
    holder.lastChild.append(button);
  }
}
