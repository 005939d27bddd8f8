// The card: all that is known of what is selected, in the order in which the page of TensorBoard
// shows it.

import {short} from "./colours.js";
import {make} from "./elements.js";
import {boxesAround} from "./graph.js";

const MOST_LINKS = 24, FEW_LINKS = 6;

/** Shows the card of a thing once it is there; of a thing selected since, another call shows it. */
export async function showCard(holder, thing, view) {
  const {graph} = view;
  const card = graph.cards.get(thing.at) || await graph.card(thing);
  if (view.selected !== thing) return;
  holder.replaceChildren();
  holder.scrollTop = 0;
  if (thing === graph.root) showGraph(holder, graph, card);
  else {
    holder.append(path(thing, view));
    holder.append(make("h2", {}, thing.label));
    if (thing.class) holder.append(make("p", {class: "class"}, thing.class));
  }
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
  if (card.facts.length) addTable(holder, "Attributes", card.facts);
  if (card.device) addTable(holder, "Device", [["", card.device]]);
  for (const {title, of} of card.links) {
    addLinks(holder, title, of, view, title === "Boxes with the same inside" ? FEW_LINKS : MOST_LINKS);
  }
}

function showGraph(holder, {head}, card) {
  holder.append(make("h2", {}, head.title || "graph"));
  const rows = [["nodes", head.nodes.toLocaleString("en")], ["boxes", head.boxes.toLocaleString("en")]];
  for (const [key, {title}] of Object.entries(head.figures)) {
    if (card.figures[key] !== null) rows.push([title, short(card.figures[key], key)]);
  }
  addTable(holder, "The whole", rows);
  if (head.notes.length) {
    const list = make("ul", {class: "notes"}, ...head.notes.map((note) => make("li", {}, note)));
    holder.append(section("Notes", list));
  }
}

function path(thing, view) {
  const line = make("p", {class: "path"});
  for (const box of boxesAround(thing)) line.append(link(box, view, box.label), " / ");
  return line;
}

function link({at, name}, view, text) {
  const anchor = make("a", {href: `#${encodeURIComponent(name)}`, title: name}, text);
  anchor.addEventListener("click", (event) => { event.preventDefault(); view.show(at); });
  return anchor;
}

function section(title, ...content) {
  return make("section", {}, make("h3", {}, title), ...content);
}

function addTable(holder, title, rows) {
  const table = make("table");
  for (const [key, value] of rows) {
    const row = make("tr");
    if (key) row.append(make("th", {scope: "row"}, key));
    row.append(make("td", key ? {} : {colspan: "2"}, value));
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
