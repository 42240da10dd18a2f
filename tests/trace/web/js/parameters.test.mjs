import assert from "node:assert/strict";
import { test } from "node:test";
import { styles } from "../../../../src/cutaway/trace/web/js/figures/catalogue.js";
import {
  COMPUTING, FIELDS, FORM, ORDER, chainOf, changeSettings, describeSettings, jsonError, linesOf, linesText, schemaOf, styleOf, valueOf, valueText,
} from "../../../../src/cutaway/trace/web/js/compose/parameters.js";

const USUAL = { temperature: 0.7, top_p: 0.9, stop: [], preset: "cutaway" };

test("a default is not requested, and undefined resets a setting", () => {
  assert.deepEqual(changeSettings({}, USUAL, { temperature: 0.2 }), { temperature: 0.2 });
  assert.deepEqual(changeSettings({ temperature: 0.2 }, USUAL, { temperature: 0.7 }), {});
  assert.deepEqual(changeSettings({ temperature: 0.2, top_p: 1 }, USUAL, { temperature: undefined }), { top_p: 1 });
  assert.deepEqual(changeSettings({ stop: ["a"] }, USUAL, { stop: [] }), {});
  assert.deepEqual(changeSettings({}, {}, { max_tokens: 0 }), { max_tokens: 0 });
});

test("numbers are parsed, and other texts are left to the server", () => {
  for (const [text, value] of [["0.5", 0.5], [" 3 ", 3], [".5", 0.5], ["−1", -1], ["1e-3", 0.001], ["0.", 0],
    ["", undefined], ["  ", undefined], ["0,7", "0,7"], ["Infinity", "Infinity"], ["0x10", "0x10"], ["-", "-"]]) {
    assert.equal(valueOf(text), value, text);
  }
});

test("stop strings survive their field", () => {
  const stops = ["\n\n", "a\\n", "\t.", "\\", " x "];
  assert.deepEqual(linesOf(linesText(stops)), stops);
  assert.deepEqual(linesOf("a\n\nb\n"), ["a", "b"]);
  assert.deepEqual(linesOf("\\q"), ["\\q"]);
});

test("a style is recognised by its settings, and no two are equal", () => {
  for (const style of styles) assert.equal(styleOf({ ...USUAL, ...style.settings }), style);
  assert.equal(styleOf({ temperature: 0.71, top_p: 0.9 }), null);
  assert.equal(styleOf(USUAL)?.name, "balanced");
});

test("the fields are settings of a request", () => {
  assert.equal(new Set(FIELDS).size, FIELDS.length);
  assert.ok(FIELDS.includes("seed") && FIELDS.includes("max_tokens"));
});

test("a schema is JSON, and another text is left to the server", () => {
  assert.deepEqual(schemaOf('{"type": "object"}'), { type: "object" });
  assert.equal(schemaOf("true"), true);
  assert.equal(schemaOf(" "), undefined);
  assert.equal(schemaOf('{"type"'), '{"type"');
  assert.match(jsonError('{"type"'), /JSON/);
  assert.equal(jsonError("{}"), "");
});

test("what a field has written, it reads", () => {
  const values = { stop: ["\n", "a"], preset: "hf", chain: ["top_k", "temperature"], kv_cache: false, speculate: "ngram",
    json_schema: { type: "object" }, regex: "[0-9]+ ", choice: ["yes", "no\n"] };
  const settings = [...ORDER, ...COMPUTING, ...FORM];
  assert.deepEqual(settings.map(({ name }) => name), Object.keys(values));
  for (const { name, read, write, choices } of settings) {
    assert.deepEqual(read(write(values[name])), values[name], name);
    if (choices) assert.ok(choices.includes(write(values[name])), name);
  }
});

test("a custom chain is a list of names, with any separator", () => {
  assert.deepEqual(chainOf(" top_k, temperature → min_p\n"), ["top_k", "temperature", "min_p"]);
  assert.equal(chainOf(" "), undefined);
  assert.equal(describeSettings({ temperature: 0.7, top_p: 0.9 }), "temperature 0.7, top-p 0.9");
});

test("values in words", () => {
  assert.equal(valueText(["\n"]), '"\\n"');
  assert.equal(valueText([]), "none");
  assert.equal(valueText(0), "0");
  assert.equal(valueText(null), "–");
});
