import assert from "node:assert/strict";
import { test } from "node:test";
import {
  FIELDS, STYLES, changed, stopsOf, stopsText, styleOf, told, valueOf,
} from "../../../src/cutaway/web/js/compose/parameters.js";

const USUAL = { temperature: 0.7, top_p: 0.9, stop: [], preset: "cutaway" };

test("a value as usual is not asked for, and undefined takes one back", () => {
  assert.deepEqual(changed({}, USUAL, { temperature: 0.2 }), { temperature: 0.2 });
  assert.deepEqual(changed({ temperature: 0.2 }, USUAL, { temperature: 0.7 }), {});
  assert.deepEqual(changed({ temperature: 0.2, top_p: 1 }, USUAL, { temperature: undefined }), { top_p: 1 });
  assert.deepEqual(changed({ stop: ["a"] }, USUAL, { stop: [] }), {});
  assert.deepEqual(changed({}, {}, { max_tokens: 0 }), { max_tokens: 0 });
});

test("numbers are numbers, and what is none stays for the server to judge", () => {
  for (const [text, value] of [["0.5", 0.5], [" 3 ", 3], [".5", 0.5], ["−1", -1], ["1e-3", 0.001], ["0.", 0],
    ["", undefined], ["  ", undefined], ["0,7", "0,7"], ["Infinity", "Infinity"], ["0x10", "0x10"], ["-", "-"]]) {
    assert.equal(valueOf(text), value, text);
  }
});

test("stop strings come back from their field as they were", () => {
  const stops = ["\n\n", "a\\n", "\t.", "\\", " x "];
  assert.deepEqual(stopsOf(stopsText(stops)), stops);
  assert.deepEqual(stopsOf("a\n\nb\n"), ["a", "b"]);
  assert.deepEqual(stopsOf("\\q"), ["\\q"]);
});

test("a style is known by its pair, and no two are alike", () => {
  for (const style of STYLES) assert.equal(styleOf({ ...USUAL, ...style }), style);
  assert.equal(styleOf({ temperature: 0.71, top_p: 0.9 }), null);
  assert.equal(styleOf(USUAL)?.name, "balanced");
});

test("the fields are those that a request may name", () => {
  assert.equal(new Set(FIELDS).size, FIELDS.length);
  assert.ok(FIELDS.includes("seed") && FIELDS.includes("max_tokens"));
});

test("values in words", () => {
  assert.equal(told(["\n"]), '"\\n"');
  assert.equal(told([]), "none");
  assert.equal(told(0), "0");
  assert.equal(told(null), "–");
});
