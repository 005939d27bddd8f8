// The panels below the picture: the table of modules, the functions with their uses, the notes.

import {copyText, make} from "./elements.js";
import {moduleTable} from "./modules.js";

const PANELS = {modules: "Modules", functions: "Functions", notes: "Notes"};
// What these keys do in a panel, they do not do in the picture.
const OWN_KEYS = /^(Enter| |Arrow.*|Page.*|Home|End)$/;
const MOST_SHOWN = 100, MOST_USES = 24;

/**
 * Makes the panels, which are closed at first.
 *
 * @param {object} view - The viewer: `graph`, `selected`, `show(number)`, `focus()`.
 * @returns {object} `toggle()`, `show(name)`, `mark(thing)` for what is selected, `renew()` for another graph.
 */
export function addPanels(view) {
  let open = null, shown = null;
  const tabs = Object.entries(PANELS).map(([name, title]) => {
    const tab = make("button", {role: "tab", id: `tab-${name}`, "aria-controls": "panel-body"}, title);
    tab.addEventListener("click", () => show(name));
    return tab;
  });
  const filter = make("input", {type: "search", placeholder: "Filter", "aria-label": "Filter", spellcheck: "false"});
  const count = make("span", {role: "status"});
  const copy = make("button", {title: "Copy the table, to be pasted into a spreadsheet"}, "Copy");
  const close = make("button", {title: "Close (t)", "aria-label": "Close the panel"}, "×");
  const body = make("div", {id: "panel-body", role: "tabpanel"});
  const panel = make("section", {id: "panel", "aria-label": "Modules, functions and notes", hidden: ""},
    make("div", {class: "bar"}, make("div", {role: "tablist"}, ...tabs), filter, count, copy, close), body);
  document.querySelector("main").after(panel);

  filter.addEventListener("input", () => { if (shown) count.textContent = counted(shown, filter.value); });
  copy.addEventListener("click", async () => {
    const done = await copyText(shown.text());
    copy.textContent = done ? "Copied" : "The browser refuses";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  close.addEventListener("click", toggle);
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.focus();
    else if (!OWN_KEYS.test(event.key)) return;
    event.stopPropagation();
  });
  panel.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const names = Object.keys(PANELS), next = (names.indexOf(open) + step + names.length) % names.length;
    tabs[next].focus();
    show(names[next]);
  });

  async function show(name) {
    const {graph} = view;
    open = name;
    shown = null;
    panel.hidden = false;
    tabs.forEach((tab) => {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    });
    body.setAttribute("aria-labelledby", `tab-${name}`);
    // The table has the focus itself; what else is long is scrolled by keys.
    Object.assign(body, {tabIndex: name === "modules" ? -1 : 0, onscroll: null, onclick: null});
    body.replaceChildren(make("p", {}, "Reading …"));
    Object.assign(filter, {value: "", hidden: name === "notes"});
    copy.hidden = name !== "modules";
    count.textContent = "";
    let made = null;
    try {
      const answer = await (name === "modules" ? graph.modules() : graph.record());
      if (open !== name || view.graph !== graph) return;
      body.replaceChildren();
      made = {modules: moduleTable, functions: functionList, notes: noteList}[name](body, view, answer);
    } catch (error) {
      if (open === name && view.graph === graph) body.replaceChildren(make("p", {class: "why"}, error.message));
      return;
    }
    shown = made;
    count.textContent = counted(shown, "");
  }

  function toggle() {
    if (!open) return show("modules");
    open = shown = null;
    panel.hidden = true;
    view.focus();
  }

  return {
    toggle, show,
    mark: (thing) => { if (shown) shown.mark(thing); },
    renew: () => {
      if (open && view.graph) show(open);
      else body.replaceChildren();
    },
  };
}

function counted(shown, text) {
  const found = shown.filter(text), {all, of} = shown;
  return text.trim() ? `${found.toLocaleString("en")} of ${all.toLocaleString("en")} ${of}` : `${all.toLocaleString("en")} ${of}`;
}

function functionList(holder, view, {functions}) {
  const list = make("ul", {class: "functions"});
  let most = MOST_SHOWN, found = functions;
  const draw = () => {
    list.replaceChildren(...found.slice(0, most).map((one) => functionItem(one, view)));
    if (found.length > most) list.append(moreButton(found.length - most, () => { most = Infinity; draw(); }));
  };
  holder.append(list);
  if (!functions.length) holder.append(make("p", {}, "The graph has no calls of modules."));
  return {
    all: functions.length, of: functions.length === 1 ? "function" : "functions", mark: () => {},
    filter: (text) => {
      const words = text.toLowerCase().split(/\s+/);
      found = functions.filter(({head}) => words.every((word) => head.toLowerCase().includes(word)));
      draw();
      return found.length;
    },
  };
}

function functionItem({head, body, uses}, view) {
  const count = make("small", {}, uses.length === 1 ? "1 use" : `${uses.length.toLocaleString("en")} uses`);
  const details = make("details", {}, make("summary", {}, make("code", {}, head), count));
  // Most are never opened.
  details.addEventListener("toggle", () => {
    if (details.children.length === 1) details.append(make("pre", {}, body), useLinks(uses, view));
  });
  return make("li", {}, details);
}

function useLinks(uses, view) {
  const links = make("p", {class: "uses"}, uses.length === 1 ? "Its use: " : "Its uses: ");
  const add = (some) => links.append(...some.flatMap(({at, name}) => [useLink(at, name, view), " "]));
  add(uses.slice(0, MOST_USES));
  if (uses.length > MOST_USES) {
    links.append(moreButton(uses.length - MOST_USES, (button) => { button.remove(); add(uses.slice(MOST_USES)); }));
  }
  return links;
}

function useLink(at, name, view) {
  if (at < 0) return make("span", {title: "The picture does not show this call"}, name);
  const button = make("button", {class: "link"}, name);
  button.addEventListener("click", () => view.show(at));
  return button;
}

function moreButton(count, act) {
  const button = make("button", {}, `Show ${count.toLocaleString("en")} more`);
  button.addEventListener("click", () => act(button));
  return button;
}

function noteList(holder, view, {notes}) {
  holder.append(notes.length ? make("ul", {class: "notes"}, ...notes.map((note) => make("li", {}, note)))
    : make("p", {}, "The graph has no notes."));
  return {all: notes.length, of: notes.length === 1 ? "note" : "notes", mark: () => {}, filter: () => notes.length};
}
