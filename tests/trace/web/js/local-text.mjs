// Texts by the page's own modules, without a page: node local-text.mjs FOLDER ASKED.JSON prints a trace's records of each, as JSON.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { load } from "./local-model.mjs";

const [folder, asked] = argv.slice(2);
const { loop } = await load(folder);
for (const one of JSON.parse(await readFile(asked, "utf8"))) {
  const said = [];
  for await (const records of loop.records({ messages: null, forced: [], ...one })) said.push(...records);
  console.log(JSON.stringify(said));
}
