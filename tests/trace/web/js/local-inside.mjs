// The inside of a step by the page's own modules, without a page: node local-inside.mjs FOLDER ASKED.JSON prints each
// answer in base64, or its error.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { load } from "./local-model.mjs";

const [folder, asked] = argv.slice(2);
const { loop, anatomy, inside } = await load(folder);
for (const body of JSON.parse(await readFile(asked, "utf8"))) {
  const file = await inside(loop, anatomy, body, new AbortController().signal).catch((error) => String(error));
  console.log(typeof file === "string" ? file : Buffer.from(file).toString("base64"));
}
