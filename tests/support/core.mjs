// Texts drawn by the core: node core.mjs CORE.JS CORE.WASM FOLDER ASKED.JSON prints what each draw says; "wrong" for
// ASKED.JSON asks a thousand times for a token that there is not, and prints what was said.
import { open, readFile } from "node:fs/promises";
import { argv } from "node:process";
import { pathToFileURL } from "node:url";

const [module, wasm, folder, asked] = argv.slice(2);
const { Core } = await import(pathToFileURL(module));
const plan = JSON.parse(await readFile(`${folder}/plan.json`, "utf8"));
const fill = async (to) => {
  const file = await open(`${folder}/weights.bin`);
  for (let at = 0; at < to.length; ) at += (await file.read(to, at, Math.min(1 << 24, to.length - at), at)).bytesRead;
  await file.close();
};
const core = await Core.open(await WebAssembly.compile(await readFile(wasm)));
await core.build(plan, fill);

function text({ prompt, greedy, stages, history, seed, candidates, tracked, tokens }) {
  const chain = { greedy, stages, history, prompt: history ? prompt : [] };
  const output = [], drawn = [];
  core.run(prompt, 0);
  while (output.length < tokens) {
    const position = prompt.length + output.length;
    const draw = core.draw({ chain, seed: BigInt(seed), position, output: history ? output : [], candidates, tracked });
    drawn.push({ ...draw, logits_hash: draw.logits_hash.toString(16).padStart(16, "0") });
    output.push(draw.token_id);
    if (output.length < tokens) core.run([draw.token_id], position);
  }
  return drawn;
}

if (asked === "wrong") {
  const said = new Set();
  core.run([1, 2], 0);
  const stack = core.exports.__stack_pointer.value;
  for (let i = 0; i < 1000; i++) {
    try {
      core.run([1 << 20], 2);
    } catch (error) {
      said.add(String(error));
    }
  }
  core.run([3], 2);
  console.log([...said].join("\n"), core.exports.__stack_pointer.value - stack);
} else {
  if (!core.exports.probe(1000)) throw new Error("relaxed instructions are not exact here");
  console.log(JSON.stringify(JSON.parse(await readFile(asked, "utf8")).map(text)));
}
