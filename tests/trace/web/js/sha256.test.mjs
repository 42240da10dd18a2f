import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { digestOf, sha256 } from "../../../../src/cutaway/trace/web/js/state/sha256.js";

const expected = (bytes) => createHash("sha256").update(bytes).digest("hex");

test("a hash is the browser's, whatever the length", async () => {
  const bytes = Uint8Array.from({ length: 5000 }, (_, i) => (i * i * 31 + (i >> 3)) % 256);
  for (const length of [...Array(200).keys(), 4095, 4096, 5000]) {
    const part = bytes.subarray(bytes.length - length);
    assert.equal(Buffer.from(digestOf(part)).toString("hex"), expected(part));
    assert.equal(await sha256(part), expected(part));
  }
});
