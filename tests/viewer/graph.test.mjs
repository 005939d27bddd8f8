import assert from "node:assert/strict";
import {test} from "node:test";
import {source, VIEWER} from "./answers.mjs";

const {blockOf, boxesAround, Graph, lineText, lineWidth, showBlock} = await import(`${VIEWER}/graph.js`);

const LEVELS = {0: [["x", 10], ["net", 1]], 1: [["0", 11], ["1", 12], ["2", 13], ["3", 14]]};
const LINES = {0: {lines: [[10, 1]]}, 1: {
  lines: [[11, 12], [12, 13], [13, 14]], entries: [[10, 11]], exits: [[14, 20]],
}};

function build(times = {}) {
  const answers = source(LEVELS, LINES, times);
  return {answers, net: new Graph(answers, answers.head, answers.words)};
}

test("a level is asked for once, also by several at a time", async () => {
  const {answers, net} = build();
  await Promise.all([net.load(net.at(1)), net.load(net.at(1))]);
  await net.load(net.at(1));
  assert.deepEqual(answers.asked, [1]);
  assert.deepEqual(net.at(1).children.map(({name}) => name), ["net/0", "net/1", "net/2", "net/3"]);
  assert.deepEqual(boxesAround(net.at(11)), [net.at(1)]);
});

test("an answer that fails is asked for again", async () => {
  const {answers, net} = build();
  const {level} = answers;
  answers.level = async () => { throw new Error("gone"); };
  await assert.rejects(net.load(net.at(1)), /gone/);
  answers.level = level;
  assert.equal((await net.load(net.at(1))).children.length, 4);
});

test("one of equal blocks has the lines to the others as its own entries and exits", async () => {
  const {net} = build({1: 4});
  const box = await net.load(net.at(1));
  assert.deepEqual(box.children.map(({label}) => label), ["0"]);
  showBlock(box, blockOf(box, net.at(13)));
  assert.deepEqual(box.children.map(({label}) => label), ["2"]);
  assert.deepEqual(box.entries.map(({start, name}) => [start, name]), [[12, "1"]]);
  assert.deepEqual(box.exits.map(({end, name}) => [end, name]), [[14, "3"]]);
  showBlock(box, null);
  assert.equal(box.lines.length, 3);
});

test("a box puts out what leaves it, each type once", async () => {
  const {net} = build();
  await net.load(net.at(1));
  assert.deepEqual(net.at(1).outputs, []);
  const answers = source({0: [["net", 1], ["y", 2], ["z", 3]], 1: [["n", 4]]}, {0: {lines: [[1, 2], [1, 3]]}});
  const other = new Graph(answers, answers.head, answers.words);
  assert.deepEqual(other.at(1).outputs.map(({sizes}) => sizes), ["2×2"]);
});

test("the text and the width of a line are those of its tensors", () => {
  const tensor = (sizes, elements) => ({sizes, elements, dtype: "float32"});
  assert.equal(lineText({tensors: []}), "");
  assert.equal(lineText({tensors: [tensor("2×3", 6)]}), "2×3");
  assert.equal(lineText({tensors: [null]}), "");
  assert.equal(lineText({tensors: [tensor("2", 2), tensor("2", 2)]}), "2 of 2");
  assert.equal(lineText({tensors: [tensor("2", 2), null]}), "2 tensors");
  assert.ok(lineWidth({tensors: []}) < lineWidth({tensors: [tensor("9", 1e4)]}));
  assert.equal(lineWidth({tensors: [tensor("9", 1e12)]}), 8);
});
