// Answers of a server, written by hand, and the few things of a browser that the modules ask for.

export const VIEWER = process.env.TBSCOPE_VIEWER;

globalThis.document = {createElement: () => ({getContext: () => ({
  // Six pixels a letter.
  measureText: (text) => ({width: 6 * text.length}),
})})};

/** Returns a source of answers for boxes: `{0: [["box", 1], ["node", 2]]}` has the label and the number of children. */
export function source(levels, lines = {}, times = {}) {
  const words = [""], word = (text) => {
    if (!words.includes(text)) words.push(text);
    return words.indexOf(text);
  };
  const names = {0: ""};
  for (const [box, children] of Object.entries(levels)) {
    for (const [label, at] of children) names[at] = names[box] ? `${names[box]}/${label}` : label;
  }
  const level = (box) => {
    const found = levels[box], each = (of) => found.map(of), type = [4, word("2×2"), word("float32")];
    const read = (kind) => ((lines[box] || {})[kind] || []).map(([start, end]) => [start, end, 0, [type], word("far")]);
    return {
      box: Number(box), children: found.length, at: each(([, at]) => at), kind: each(([, at]) => at in levels ? 1 : 2),
      label: each(([label]) => word(label)), name: each(([, at]) => word(names[at])), class: each(() => word("Class")),
      second: each(() => 0), structure: each(() => 0), inside: each(() => 1), size: each(() => 1),
      times: each(([, at]) => times[at] || 0), outputs: each(([, at]) => at in levels ? [] : [type]),
      texts: {}, figures: {}, shares: each(() => ({})), below: each(() => ({})), same: each(() => []), counterparts: each(() => []), lanes: [], columns: [], back: false, circles: each(() => []),
      lines: read("lines"), entries: read("entries"), exits: read("exits"),
    };
  };
  const card = {facts: [], outputs: [], device: 0, links: [], figures: {}};
  const asked = [];
  return {
    words, asked,
    head: {title: "Net", notes: [], nodes: 1, boxes: 1, modes: {}, equal: [], figures: {}, root: card, levels: [level(0)], differences: []},
    level: async (at) => { asked.push(at); return {words, level: level(at)}; },
    card: async () => ({words, card}),
    index: async () => ({words, index: {}}),
  };
}
