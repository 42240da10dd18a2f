// What js/local/gpu/step.js launches and writes for steps of one text: node gpu-steps.mjs GPU.JSON STEPS.JSON prints both of each.
import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { launches, stepNumbers } from "../../../../src/cutaway/trace/web/js/local/gpu/step.js";

const [program, steps] = await Promise.all(argv.slice(2).map(async (path) => JSON.parse(await readFile(path, "utf8"))));
const told = steps.map(({ tokens, first, angles }) => {
  const { step, lists } = stepNumbers(program, tokens, first, (rotation) => new Float32Array(new Int32Array(angles[rotation]).buffer));
  return { launches: [...launches(program, tokens.length, first)], step: [...step], lists: [...lists] };
});
console.log(JSON.stringify(told));
