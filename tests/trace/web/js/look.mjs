// What the page makes of a look: reads the file that its first argument names, and prints its figures.

import { readFileSync } from "node:fs";
import * as figures from "../../../../src/cutaway/trace/web/js/figures/inside.js";
import { Look } from "../../../../src/cutaway/trace/web/js/state/look.js";

const [, , path, head] = process.argv;
const file = readFileSync(path);
const look = new Look(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
const chosen = head ? head.split(",").map(Number) : null;
const every = figures.heads(look);

console.log(JSON.stringify({
  token: look.token,
  rival: look.rival,
  asRun: look.value("as_run"),
  heads: every,
  byPush: figures.byPush(every, 8).map(({ layer, head: number }) => [layer, number]),
  places: figures.places(look),
  looked: figures.ordered(look, "weight", chosen).slice(0, 8),
  pushed: figures.ordered(look, "push", chosen).slice(0, 8),
  tints: [...figures.tints(look, "weight", chosen)],
  pushTints: [...figures.tints(look, "push", chosen)],
  cells: [...figures.cells(every, "entropy")],
  lens: figures.lensRows(look),
  lensSentence: figures.lensSentence(look, "it"),
  parts: figures.parts(look),
  total: figures.total(look),
}));
