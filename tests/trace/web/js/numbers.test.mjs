// How tokens and measures are shown.

import assert from "node:assert/strict";
import test from "node:test";
import { unescapeName } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { surpriseColour, visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";

test("invisible characters of a token are made visible, in the notation of Python", () => {
  assert.equal(visible(""), "∅");
  assert.equal(visible(" a "), "␣a␣");
  assert.equal(visible("\n\t\u202e"), "\\n\\t\\u202e");
  assert.equal(visible("\u05b8"), "◌\u05b8"); // a vowel sign has no letter to stand on
  assert.equal(visible("e\u0301"), "e\u0301");
});

test("surprise of 0 has the background's own colour, of 8 bits or more the strongest", () => {
  assert.equal(surpriseColour(0), "rgb(217 72 1 / 0.000)");
  assert.equal(surpriseColour(4), "rgb(217 72 1 / 0.410)");
  assert.equal(surpriseColour(8), surpriseColour(80));
});

test("a name from Python is written like the page's own", () => {
  assert.equal(visible(unescapeName("<0x0A><0x0A>a")), "\\n\\na");
  assert.equal(unescapeName("<0xE2><0x80><0x8B>"), "\u200b");
  assert.equal(unescapeName("<0xE2>x<|im_end|>"), "\\xe2x<|im_end|>");
});
