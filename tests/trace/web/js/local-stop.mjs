// A text that is stopped as soon as the loop lets messages in: node local-stop.mjs FOLDER prints its steps, and those of the whole.
import { argv } from "node:process";
import { load } from "./local-model.mjs";

const { loop } = await load(argv[2]), control = new AbortController();
const settings = { max_tokens: 480, ignore_eos: true, cache_prompt: false };

/** @param {AbortSignal} [signal] */
async function steps(signal) {
  let count = 0;
  const text = loop.records({ messages: null, forced: [], prompt: "Mr. Darcy", settings, seed: "1" }, signal);
  for await (const records of text) count += records.filter(({ kind }) => kind === "step").length;
  return count;
}

setTimeout(() => control.abort(), 0);
console.log(JSON.stringify([await steps(control.signal), await steps()]));
