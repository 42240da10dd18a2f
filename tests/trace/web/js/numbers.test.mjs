// How tokens are shown: what cannot be seen, as something that can.

import assert from "node:assert/strict";
import test from "node:test";
import { visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";

test("a token that cannot be seen is shown all the same", () => {
  assert.equal(visible(""), "∅");
  assert.equal(visible(" a "), "␣a␣");
  assert.equal(visible("\n\t\u202e"), "⏎⇥\\u{202e}");
  assert.equal(visible("\u05b8"), "◌\u05b8"); // a vowel sign has no letter to stand on
  assert.equal(visible("e\u0301"), "e\u0301");
});
