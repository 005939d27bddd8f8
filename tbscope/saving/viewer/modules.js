// The table of modules: sorted by a column, filtered by words; a row leads to its box or node.

import {short} from "./colours.js";
import {brief, make} from "./elements.js";

// All rows are as high as this, so that only those in sight need elements.
const MOST_IN_CELL = 300, MOST_IN_TITLE = 2000;
const ROW_HEIGHT = 24, SPARE_ROWS = 20;
const NUMBER_TITLES = {inside: "nodes", parameter_count: "parameters", trainable_parameter_count: "trainable"};
const FIRST_NUMBERS = ["inside", "parameter_count", "trainable_parameter_count", "flops"];
const COLUMN_WIDTHS = {class: 150, output: 150};

/**
 * Makes the table of a graph, and keeps it up to date with what is selected.
 *
 * @param {HTMLElement} holder - Scrolls the table.
 * @param {object} view - The viewer: `graph`, `selected`, `show(number)`, `focus()`.
 * @param {object} table - The answer `modules` (see `Graph`).
 * @returns {object} `filter(text)`, `mark(thing)`, `text()`: the rows as lines with tabs between.
 */
export function moduleTable(holder, view, table) {
  const columns = columnsOf(table, view.graph.head);
  const rows = table.at.map((at, row) => row);
  const places = new Map(table.at.map((at, row) => [at, row]));
  const texts = rows.map((row) => `${table.name[row]} ${table.class[row]} ${table.output[row]}`.toLowerCase());
  const state = {sorted: null, down: false, words: [], rows, marked: -1, active: 0, drawn: [0, 0]};
  const body = make("tbody");
  const heads = columns.map((column) => headCell(column, () => sortBy(column)));
  const grid = make("table", {class: "modules", role: "grid", tabindex: "0", "aria-label": `Table of ${table.of}`},
    make("colgroup", {}, ...columns.map(({width}) => make("col", width ? {style: `width: ${width}px`} : {}))),
    make("thead", {}, make("tr", {}, ...heads)), body);
  grid.style.minWidth = `${columns.reduce((sum, {width}) => sum + (width || 220), 0)}px`;
  holder.replaceChildren(grid);

  function sortBy(column) {
    // Numbers begin with the largest, texts with the first; a third click gives the tree again.
    const first = Boolean(column.number);
    if (state.sorted !== column) Object.assign(state, {sorted: column, down: first});
    else if (state.down === first) state.down = !first;
    else state.sorted = null;
    heads.forEach((cell, place) => {
      const now = state.sorted === columns[place];
      cell.setAttribute("aria-sort", now ? (state.down ? "descending" : "ascending") : "none");
    });
    arrange();
  }

  function arrange() {
    const {sorted, down, words} = state;
    state.rows = rows.filter((row) => words.every((word) => texts[row].includes(word)));
    if (sorted) state.rows.sort((one, other) => compareCells(sorted.of(one), sorted.of(other), down) || one - other);
    state.active = 0;
    grid.setAttribute("aria-rowcount", String(state.rows.length + 1));
    holder.scrollTop = 0;
    draw();
  }

  /** Returns the first row that is in sight, and the one after the last. */
  function inSight() {
    const {scrollTop, clientHeight} = holder;
    const end = Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT);
    return [Math.floor(scrollTop / ROW_HEIGHT), Math.min(state.rows.length, end)];
  }

  /** Makes the rows that are in sight and some around them, and leaves room for the others. */
  function draw() {
    const shown = state.rows, [first, last] = inSight();
    const start = Math.max(0, first - SPARE_ROWS), end = Math.min(shown.length, last + SPARE_ROWS);
    state.drawn = [start, end];
    const inTree = !state.sorted && !state.words.length;
    body.replaceChildren(emptyRows(start), ...shown.slice(start, end).map((row, place) => line(row, start + place, inTree)),
      emptyRows(shown.length - end));
    const active = shown.length ? `module-${shown[state.active]}` : "";
    grid.setAttribute("aria-activedescendant", active);
  }

  function line(row, place, inTree) {
    const made = make("tr", {
      id: `module-${row}`, "data-at": String(table.at[row]), "aria-rowindex": String(place + 2),
      "aria-selected": String(row === state.marked), class: place === state.active ? "active" : "",
    });
    for (const column of columns) {
      const text = column.text(row, inTree);
      const cell = make("td", {title: brief(column.exact(row), MOST_IN_TITLE)}, brief(text, MOST_IN_CELL));
      if (column.number) cell.className = "number";
      else if (column.key === "name" && inTree) cell.style.paddingLeft = `${8 + 14 * Math.min(table.depth[row], 20)}px`;
      made.append(cell);
    }
    return made;
  }

  function reveal(place) {
    const top = place * ROW_HEIGHT, most = top + 2 * ROW_HEIGHT - holder.clientHeight;
    if (holder.scrollTop > top) holder.scrollTop = top;
    else if (holder.scrollTop < most) holder.scrollTop = most;
    draw();
  }

  function go(place) {
    state.active = Math.max(0, Math.min(state.rows.length - 1, place));
    reveal(state.active);
  }

  holder.onscroll = () => {
    const [first, last] = inSight(), [start, end] = state.drawn;
    if (first < start || last > end) draw();
  };
  holder.onclick = ({target}) => {
    const row = target.closest("tbody tr[data-at]");
    if (row) view.show(Number(row.dataset.at));
  };
  grid.onkeydown = (event) => {
    const page = Math.max(1, Math.floor(holder.clientHeight / ROW_HEIGHT) - 2), {active} = state;
    const steps = {
      ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page,
      Home: 0, End: state.rows.length - 1,
    };
    if (event.target !== grid || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) go(steps[event.key]);
    else if (event.key === "Enter" && state.rows.length) view.show(table.at[state.rows[active]]);
    else return;
    event.preventDefault();
  };

  const told = {
    all: rows.length, of: table.of === "modules" ? "modules" : "boxes; the graph has no classes of modules",
    filter(text) {
      state.words = text.toLowerCase().split(/\s+/).filter((word) => word);
      arrange();
      return state.rows.length;
    },
    /** Marks the row of a thing, or of the innermost module around it. */
    mark(thing) {
      while (thing && !places.has(thing.at)) thing = thing.around;
      state.marked = thing ? places.get(thing.at) : -1;
      const place = state.rows.indexOf(state.marked);
      if (place >= 0) go(place);
      else draw();
    },
    text: () => [columns.map(({title}) => title), ...state.rows.map((row) => columns.map((column) => column.of(row)))]
      .map((cells) => cells.map(cellText).join("\t")).join("\n"),
  };
  told.filter("");
  told.mark(view.selected);
  return told;
}

function columnsOf(table, {figures, title}) {
  const path = (row) => table.name[row] || title || "graph";
  const words = [
    {key: "name", title: table.of === "modules" ? "module" : "box", of: path, text: (row, inTree) => inTree ? nameBelow(table, row, path) : path(row)},
    {key: "class", title: "class", of: (row) => table.class[row]},
    {key: "output", title: "output", of: (row) => table.output[row]},
  ].filter(({key, of}) => key === "name" || table.at.some((at, row) => of(row)));
  const keys = Object.keys(table.numbers);
  const order = [...FIRST_NUMBERS.filter((key) => keys.includes(key)), ...keys.filter((key) => !FIRST_NUMBERS.includes(key))];
  const numbers = order.map((key) => ({
    key, number: true, title: NUMBER_TITLES[key] || figures[key].title, of: (row) => table.numbers[key][row],
    text: (row) => isNone(table.numbers[key][row]) ? "" : short(table.numbers[key][row], key),
  }));
  return [...words, ...numbers].map((column) => ({
    width: column.number ? Math.max(92, 38 + 8 * column.title.length) : COLUMN_WIDTHS[column.key], text: column.of, ...column,
    exact: (row) => isNone(column.of(row)) ? "" : column.of(row).toLocaleString("en"),
  }));
}

/** Returns a name without that of the row around it. */
function nameBelow(table, row, path) {
  let around = row - 1;
  while (around >= 0 && table.depth[around] >= table.depth[row]) around -= 1;
  const start = around >= 0 && table.name[around] ? `${table.name[around]}/` : "";
  return path(row).startsWith(start) ? path(row).slice(start.length) : path(row);
}

function headCell({title, number}, sort) {
  const button = make("button", {title: `Sort by ${title}`}, title);
  button.addEventListener("click", sort);
  return make("th", {scope: "col", "aria-sort": "none", ...number ? {class: "number"} : {}}, button);
}

function emptyRows(rows) {
  return make("tr", {"aria-hidden": "true", style: `height: ${rows * ROW_HEIGHT}px`});
}

function isNone(value) {
  return value === null || value === undefined;
}

/** Compares two cells; one without a number comes last, either way. */
function compareCells(one, other, down) {
  if (isNone(one) || isNone(other)) return Number(isNone(one)) - Number(isNone(other));
  const way = typeof one === "number" ? one - other : one.localeCompare(other, "en", {numeric: true});
  return down ? -way : way;
}

/** A cell for a spreadsheet, which would take a text that begins so for a formula. */
function cellText(value) {
  if (isNone(value)) return "";
  const text = String(value).replace(/[\t\r\n]+/g, " ");
  return typeof value === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text;
}
