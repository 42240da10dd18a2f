// Runs for the tests of the lessons, put together from records.

import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";

export const END = 9;

const HEAD = {
  kind: "head", format: "cutaway-trace", version: 1, prompt: "Once ", prompt_token_ids: [1, 2],
  chain: [{ stage: "temperature", temperature: 0.7 }, { stage: "top_k", k: 2 }],
  params: { temperature: 0.7, max_tokens: 16 }, seed: "18446744073709551615", end_ids: [END], kv_bytes: 8,
};

/** A step: the token chosen, with what is to be said of it and of others. */
export const step = (id, { logprob = -1, others = [], own = id, ...more } = {}) => {
  const rows = [{ id, logit: logprob, rank: 1 }, ...others].map((row) =>
    ({ delta: 0, removed_by: null, final_logprob: row.logit, luck: 0, ...row }));
  const names = ["id", "logit", "rank", "delta", "removed_by", "final_logprob", "luck"];
  return {
    kind: "step", token_id: id, own, source: "sampled", text: `t${id} `, log_sum_exp: 0, maximum: 0,
    entropy: 1, rank: 1, logprob, final_logprob: logprob, stages: [{}, {}], ms: {},
    candidates: Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name])])), ...more,
  };
};

export function traceOf(steps, { head = {}, end = null } = {}) {
  const trace = new Trace();
  trace.take({ ...HEAD, ...head });
  for (let id = 0; id < 300; id++) trace.take({ kind: "tok", id, text: `t${id} ` });
  steps.forEach((record, index) => trace.take({ ...record, index, position: 2 + index }));
  if (end) trace.take({ kind: "end", text: "", ...end });
  return trace;
}

export const runOf = (id, trace, { parent = null, at = 0, forced = [] } = {}) =>
  ({ id, trace, parent, at, request: { forced }, live: false, name: "", error: null });
