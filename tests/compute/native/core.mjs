// Texts drawn by the core: node core.mjs CORE.JS CORE.WASM FOLDER ASKED.JSON prints what each draw says; "wrong" for
// ASKED.JSON asks for a token that there is not, and twice the same after a good run.
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
const core = await Core.load(await WebAssembly.compile(await readFile(wasm)), plan, fill);

function text({ prompt, greedy, stages, history, seed, candidates, tracked, tokens }) {
  const chain = core.chain({ greedy, stages, history, prompt: history ? prompt : [] });
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
  for (let i = 0; i < 2; i++) {
    core.run([1, 2], 0);
    try {
      core.run([1 << 20], 2);
    } catch (error) {
      console.log(String(error));
    }
  }
} else {
  console.log(JSON.stringify(JSON.parse(await readFile(asked, "utf8")).map(text)));
}
