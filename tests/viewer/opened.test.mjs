import assert from "node:assert/strict";
import {test} from "node:test";
import {source, VIEWER} from "./answers.mjs";

const {Graph, showBlock} = await import(`${VIEWER}/graph.js`);
const {decoded, openBoxes, openedText, readOpened} = await import(`${VIEWER}/opened.js`);

const LEVELS = {
  0: [["x", 10], ["a (odd)!*", 1], ["layers", 2]],
  1: [["inner", 3]], 3: [["y", 11]],
  2: [["0", 4], ["1", 5], ["2", 6]], 4: [["n", 12]], 5: [["n", 13]], 6: [["n", 14]],
};

async function graph() {
  const answers = source(LEVELS, {}, {2: 3});
  return new Graph(answers, answers.head, answers.words);
}

async function open(net, ...numbers) {
  for (const at of numbers) (await net.load(net.at(at))).open = true;
}

test("nothing is written where all is as it is at first", async () => {
  const net = await graph();
  assert.equal(openedText(net, net.root), null);
});

test("what is written opens the same boxes again", async () => {
  const net = await graph();
  await open(net, 1, 3, 2);
  showBlock(net.at(2), 1);
  await open(net, 5);
  const text = openedText(net, net.root);
  assert.equal(text, "a%20%28odd%29%21%2a(inner)!layers*2(1");
  const other = await graph();
  await openBoxes(other, text);
  assert.equal(openedText(other, other.root), text);
  assert.equal(other.at(2).shows, 1);
  assert.deepEqual([...other.things.values()].filter((one) => one.open).map(({at}) => at), [0, 1, 2, 3, 5]);
  await openBoxes(other, null);
  assert.equal(openedText(other, other.root), null);
});

test("all blocks of a box are one word", async () => {
  const net = await graph();
  await open(net, 2);
  showBlock(net.at(2), null);
  assert.equal(openedText(net, net.root), "layers*all");
  const other = await graph();
  await openBoxes(other, "layers*all");
  assert.equal(other.at(2).children.length, 3);
});

test("boxes to which the selected thing leads are not written", async () => {
  const net = await graph();
  await open(net, 2);
  showBlock(net.at(2), 2);
  await open(net, 6);
  assert.equal(openedText(net, net.at(14)), null);
  assert.equal(openedText(net, net.at(6)), "layers*3(2");
  assert.equal(openedText(net, net.at(2)), "layers*3(2");
});

test("too long a text is left out", async () => {
  const levels = {0: []};
  for (let at = 1; at <= 100; at += 1) { levels[0].push([`a_box_of_a_long_name_${at}`, at]); levels[at] = [["x", 1000 + at]]; }
  const answers = source(levels);
  const net = new Graph(answers, answers.head, answers.words);
  await open(net, 1);
  assert.equal(openedText(net, net.root), "a_box_of_a_long_name_1");
  await open(net, ...Array(99).fill(2).map((two, at) => two + at));
  assert.equal(openedText(net, net.root), null);
});

test("a damaged text opens as far as it has a sense", async () => {
  for (const text of ["(((", ")))!!", "no(where", "layers*99", "layers*x(", "%", "layers(%(*", "x(y"]) {
    const net = await graph();
    await openBoxes(net, text);
    assert.equal(net.at(2).open, text.startsWith("layers"));
  }
  assert.deepEqual(readOpened(")"), []);
  assert.equal(decoded("%zz"), "%zz");
});
