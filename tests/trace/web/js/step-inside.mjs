// Prints the page's figures of a step's inside, read from the file that the first argument names.

import { readFileSync } from "node:fs";
import * as figures from "../../../../src/cutaway/trace/web/js/figures/inside.js";
import { StepInside } from "../../../../src/cutaway/trace/web/js/state/step-inside.js";

const [, , path, head] = process.argv;
const file = readFileSync(path);
const inside = new StepInside(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
const chosen = head ? head.split(",").map(Number) : null;
const every = figures.heads(inside);

console.log(JSON.stringify({
  token: inside.token,
  rival: inside.rival,
  asRun: inside.value("as_run"),
  heads: every,
  byAttribution: figures.sortByAttribution(every).slice(0, 8).map(({ layer, head: number }) => [layer, number]),
  places: figures.places(inside),
  looked: figures.sortedPlaces(inside, "weight", chosen).slice(0, 8),
  attributed: figures.sortedPlaces(inside, "attribution", chosen).slice(0, 8),
  tints: [...figures.tints(inside, "weight", chosen)],
  attributionTints: [...figures.tints(inside, "attribution", chosen)],
  cells: [...figures.cells(every, "entropy")],
  lens: figures.lensRows(inside),
  lensSentence: figures.lensSentence(inside, "it"),
  headSentence: figures.headSentence(inside, every.at(-1), "it"),
  components: figures.components(inside),
  total: figures.total(inside),
}));
