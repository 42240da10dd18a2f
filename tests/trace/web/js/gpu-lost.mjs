// A text whose GPU is lost: node gpu-lost.mjs FOLDER ASKED.JSON AFTER prints the fingerprint, and how often the reader was replaced.
// In the place of the GPU is a second core, whose logits the first one is given, and which fails after AFTER steps.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { GpuError } from "../../../../src/cutaway/trace/web/js/local/gpu/model.js";
import { Reader } from "../../../../src/cutaway/trace/web/js/local/reader.js";
import { load } from "./local-model.mjs";

const [folder, asked, after] = argv.slice(2);
const { loop, anatomy, inside } = await load(folder), other = (await load(folder)).loop.core;
const onCore = loop.reader;
let left = Number(after), replaced = 0;
loop.reader = new Reader({ hasStates: other.hasStates, run: (tokens, first) => {
  if (left-- === 0) throw new GpuError("lost");
  other.run(tokens, first);
  loop.core.receive(new Float32Array(other.memory.buffer, other.logits, other.vocabulary));
} });
loop.fallBack = async () => {
  replaced += 1;
  loop.reader = onCore;
};
const { text, look } = JSON.parse(await readFile(asked, "utf8"));
if (look) { // the core has looked into another text before
  const onGpu = loop.reader;
  loop.reader = onCore;
  await inside(loop, anatomy, look, new AbortController().signal);
  loop.reader = onGpu;
}
let end;
for await (const records of loop.records(text)) end = records.at(-1);
console.log(JSON.stringify([end.fingerprint, replaced]));
