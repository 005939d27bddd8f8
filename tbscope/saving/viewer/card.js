// The card: all that is known of what is selected, in the order in which the page of TensorBoard
// tells it.

const MOST_LINKS = 24, FEW_LINKS = 6;

function showCard(holder, thing, view) {
  holder.replaceChildren();
  holder.scrollTop = 0;
  const root = view.things[0];
  if (thing === root) showGraph(holder, root, view);
  else {
    holder.append(path(thing, view));
    holder.append(make("h2", {}, thing.label));
    if (thing.class) holder.append(make("p", {class: "class"}, thing.class));
  }
  if (thing.isBox && thing !== root) {
    const button = make("button", {class: "toggle"}, thing.open ? "Close" : "Open");
    button.addEventListener("click", () => view.toggle(thing));
    holder.append(button, make("p", {}, `${thing.inside.toLocaleString("en")} nodes inside`));
  }
  if (thing.outputs.length) {
    const rows = thing.outputs.map((one, at) =>
      [thing.outputs.length > 1 ? String(at) : "", `${one.sizes}  ${one.dtype}`]);
    addTable(holder, thing.outputs.length > 1 ? "Outputs" : "Output", rows.slice(0, MOST_LINKS));
  }
  if (thing.facts.length) addTable(holder, "Attributes", thing.facts);
  if (thing.device && !thing.isBox) addTable(holder, "Device", [["", thing.device]]);
  const data = thing.reads.filter((read) => !read.waits);
  const tensor = (read) => read.source.outputs[read.output];
  const reads = (kept) => data.filter((read) => (read.source.kind === CIRCLE) === kept)
    .map((read) => ({thing: read.source, text: tensor(read) ? tensor(read).sizes : ""}));
  addLinks(holder, "Inputs", reads(false), view);
  addLinks(holder, "Parameters and constants", reads(true), view);
  addLinks(holder, "Waits for", thing.reads.filter((read) => read.waits).map((read) => ({thing: read.source})), view);
  addLinks(holder, "Read by", thing.readers.map(({reader, output}) =>
    ({thing: reader, text: thing.outputs[output] ? thing.outputs[output].sizes : ""})), view);
  if (thing.isBox && thing !== root) {
    addCrossings(holder, thing, view);
    const equal = view.things.filter((one) => one !== thing && one.structure === thing.structure);
    if (thing.structure) addLinks(holder, "Boxes with the same inside", equal.map((one) => ({thing: one})), view, FEW_LINKS);
  }
}

/** Tells what enters a box and what leaves it. */
function addCrossings(holder, box, view) {
  const inside = (one) => { while (one && one !== box) one = one.around; return one === box; };
  const entered = new Map(), left = new Map();
  const below = (one, found) => {
    for (const child of one.children) { found.push(child); if (child.isBox) below(child, found); }
    return found;
  };
  for (const node of below(box, []).filter((one) => !one.isBox)) {
    for (const {source, output, waits} of node.reads) {
      if (waits || source.kind === CIRCLE || inside(source)) continue;
      entered.set(`${source.at}:${output}`, {thing: source, text: source.outputs[output] ? source.outputs[output].sizes : ""});
    }
    for (const {reader, output, waits} of node.readers) {
      if (waits || inside(reader)) continue;
      left.set(`${node.at}:${reader.at}`, {thing: reader, text: node.outputs[output] ? node.outputs[output].sizes : ""});
    }
  }
  addLinks(holder, "Inputs", [...entered.values()], view);
  addLinks(holder, "Read by", [...left.values()], view);
}

function showGraph(holder, root, view) {
  holder.append(make("h2", {}, view.data.title || "graph"));
  const boxes = view.things.filter((thing) => thing.kind === BOX).length;
  const rows = [["nodes", root.inside.toLocaleString("en")], ["boxes", boxes.toLocaleString("en")]];
  for (const [key, {title}] of Object.entries(view.data.figures)) {
    if (root.figures[key] !== undefined) rows.push([title, short(root.figures[key], key)]);
  }
  addTable(holder, "The whole", rows);
  if (view.data.notes.length) {
    const list = make("ul", {class: "notes"}, ...view.data.notes.map((note) => make("li", {}, note)));
    holder.append(section("Notes", list));
  }
}

function path(thing, view) {
  const line = make("p", {class: "path"});
  for (const box of boxesAround(thing)) line.append(link(box, view, box.label), " / ");
  return line;
}

function link(thing, view, text) {
  const anchor = make("a", {href: hashOf(thing), title: thing.name}, text);
  anchor.addEventListener("click", (event) => { event.preventDefault(); view.reveal(thing); });
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

function addLinks(holder, title, links, view, most = MOST_LINKS) {
  if (!links.length) return;
  const list = make("ul", {class: "links"});
  const rest = links.length - most;
  const show = (some) => list.append(...some.map(({thing, text}) =>
    make("li", {}, link(thing, view, thing.name || thing.label), make("small", {}, text || ""))));
  show(links.slice(0, most));
  holder.append(section(`${title} (${links.length})`, list));
  if (rest > 0) {
    const button = make("button", {}, `Show ${rest} more`);
    button.addEventListener("click", () => { show(links.slice(most)); button.remove(); });
    holder.lastChild.append(button);
  }
}
