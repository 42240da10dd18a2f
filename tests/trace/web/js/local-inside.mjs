// The inside of a step by the page's own modules, without a page: node local-inside.mjs FOLDER ASKED.JSON prints each
// answer in base64, or its error.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { pathToFileURL } from "node:url";

const [folder, asked] = argv.slice(2);
const module = (name) => import(pathToFileURL(`${folder}/static/js/local/${name}.js`));
const json = async (name) => JSON.parse(await readFile(`${folder}/model/${name}.json`, "utf8"));
const [{ Core }, { Loop }, { ByteLevelBPE }, { inside }] = await Promise.all(["core", "loop", "bpe", "inside"].map(module));
const about = await json("model");
const core = await Core.load(await WebAssembly.compile(await readFile(`${folder}/model/core.wasm`)), await json("plan"), async (to) => {
  let at = 0;
  for (const { name, bytes } of about.parts) {
    to.set(await readFile(`${folder}/model/${name}`), at);
    at += bytes;
  }
});
const loop = new Loop(core, new ByteLevelBPE(await json("tokenizer")), about), anatomy = await json("inside");
for (const body of JSON.parse(await readFile(asked, "utf8"))) {
  const file = await inside(loop, anatomy, body, new AbortController().signal).catch((error) => String(error));
  console.log(typeof file === "string" ? file : Buffer.from(file).toString("base64"));
}
