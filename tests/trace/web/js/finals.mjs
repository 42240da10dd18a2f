// Prints what the page shows of each step of a trace's draws: test_greedy.py compares it with Python's views.

import { readFileSync } from "node:fs";
import { momentSentence } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { stepView } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";

const trace = Trace.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(trace.steps.map((step) => {
  const { final, candidates, end } = stepView(trace, step);
  return { final, candidates: candidates.map((c) => c.final), outcome: end.outcome, end: end.final, sentence: momentSentence(trace, end) };
})));
