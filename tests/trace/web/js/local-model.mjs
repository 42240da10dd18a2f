// A page's own model from its folder, by the page's modules, without a page.
import { readFile } from "node:fs/promises";

/** @returns what runs it, where its parts are, and the function that looks into a step */
export async function load(folder) {
  const module = (name) => import(`../../../../src/cutaway/trace/web/js/local/${name}.js`);
  const json = async (name) => JSON.parse(await readFile(`${folder}/model/${name}.json`, "utf8"));
  const [{ Core }, { Loop }, { Reader }, { Tokenizer }, { computeInside: inside }] = await Promise.all(["core", "loop", "reader", "tokenizer", "inside"].map(module));
  const about = await json("model");
  const plan = await json("plan"), core = await Core.open(await WebAssembly.compile(await readFile(`${folder}/model/core.wasm`)));
  await core.build(plan, async (to) => {
    let at = 0;
    for (const { name, bytes } of about.parts) {
      to.set(await readFile(`${folder}/model/${name}`), at);
      at += bytes;
    }
  });
  return { loop: new Loop(core, new Reader(core), new Tokenizer(await json("tokenizer")), about, {}, plan.context), anatomy: await json("inside"), inside };
}
