// Texts by a GPU that was checked with at most LONGEST tokens: node gpu-limit.mjs FOLDER ASKED.JSON LONGEST prints of each text what its
// head names as computing, its fingerprint, and how many tokens were run in the place of the GPU, where a second core is.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { Loop } from "../../../../src/cutaway/trace/web/js/local/loop.js";
import { Reader } from "../../../../src/cutaway/trace/web/js/local/reader.js";
import { load } from "./local-model.mjs";

const [folder, asked, longest] = argv.slice(2);
const { loop: onCore } = await load(folder), other = (await load(folder)).loop.core;
onCore.computed = { backend: "core" };
let count = 0;
const reader = new Reader({ hasStates: other.hasStates, longest: Number(longest), run: (tokens, first) => {
  count += tokens.length;
  other.run(tokens, first);
  onCore.core.receive(new Float32Array(other.memory.buffer, other.logits, other.vocabulary));
} });
const loop = new Loop(onCore.core, reader, onCore.tokenizer, onCore.about, { backend: "gpu" }, onCore.context);
loop.onCore = async () => onCore;
loop.fallBack = async (reason) => {
  throw new Error(`the GPU was given up: ${reason}`);
};
const told = [];
for (const text of JSON.parse(await readFile(asked, "utf8"))) {
  count = 0;
  let head, end;
  for await (const records of loop.records(text)) [head, end] = [head ?? records[0], records.at(-1)];
  told.push([head.backend, end.fingerprint, count]);
}
console.log(JSON.stringify(told));
