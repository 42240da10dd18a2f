/**
 * The panel Leave out: each part of the text before the selected step is left out in turn, and the model computes the step
 * again with the same luck. The text is tinted by the loss of log-probability; a table has the figures.
 */

import { heat, phrase } from "../figures/catalogue.js";
import { LN2, MOST_BITS, escapeInvisible, percent, thousands, visible, withSign } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { stepOf } from "../state/inside-cache.js";
import { sentence } from "../state/session.js";
import { unescapeName } from "../state/trace.js";
import { button, el, figure, replace, scale, setText, token } from "./dom.js";
import { ATTRIBUTION, table } from "./inside-tables.js";
import { View } from "./view.js";

/**
 * @typedef {{start: number, stop: number, tokens: string[], weight: number, attribution: number, effect: number,
 *   margin: number, drawn: number | null, drawn_token: string | null}} AblatedPart
 * @typedef {{by: string, token_name: string, rival_name: string, drawn: number | null, tokens: string[],
 *   total: number, parts: AblatedPart[]}} Ablation
 */

const BY = ["word", "token", "line", "sentence"];
const METHODS = { delete: "deleted", knock_out: "masked for all later tokens", other: "replaced by the likeliest other token" };
const MOST_ROWS = 24; // rows
/** @type {import("./inside-tables.js").Columns} */
const COLUMNS = [["position", 5], ["part", 11], ["weight", 5.2, "attention weight, the mean of all heads"],
  ["attribution", 5.6, ATTRIBUTION], ["log p lost", 5.2, "of the token's log-probability; 0.69 is half as likely"],
  ["margin lost", 5.4, "of the token's logit above that of the other token"],
  ["drawn", 8, "what the same luck then draws, where it is another token"]];

class WithoutPanel extends View {
  by = select("Each", BY.map((name) => [name, name]));
  method = select("is", Object.entries(METHODS));
  start = button("Leave it out", () => this.find(), { class: "primary" });
  status = el("p", { class: "faint", role: "status" });
  text = el("p", { class: "token text left-out" });
  legend = el("p", { class: "legend faint" }, "log p lost: 0 ", scale(), " 8 bits or more");
  figures = el("div");
  note = el("p", { class: "faint" }, phrase("not because"));
  answer = new AbortController();
  /** @type {Ablation | null} */
  ablation = null;
  /** the step and the rival of the figures that are shown */
  shownKey = "";

  build() {
    replace(this, el("div", { class: "row" }, this.by.label, this.method.label, this.start), this.status, this.text,
      this.legend, this.figures, this.note);
    this.clear("");
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    this.start.disabled = !step || !state.about;
    const key = run && step ? `${run.id} ${step.index} ${this.store.rival}` : "";
    if (key === this.shownKey) return;
    this.shownKey = key;
    this.answer.abort();
    this.clear(!step ? "Write something, or open a trace: this panel computes a step again without parts of the text."
      : state.about ? "Each part of the text before the selected step is left out in turn, and the rest is computed again."
        : "This needs the model: open the trace on the page of cutaway serve, or use cutaway trace ablate.");
  }

  /** @param {string} sentence */
  clear(sentence) {
    this.ablation = null;
    setText(this.status, sentence);
    for (const part of [this.text, this.legend, this.figures, this.note]) part.hidden = true;
  }

  async find() {
    const { run, state } = this.store;
    if (!run) return;
    this.answer.abort();
    const { signal } = (this.answer = new AbortController());
    this.clear("The model computes the step without each part …");
    try {
      const body = { ...stepOf(run.trace, state.step), by: this.by.field.value, how: this.method.field.value };
      const answer = await ask("/v1/inside/ablate", { ...body, rival: this.store.rival }, signal);
      const ablation = await answer.json();
      if (!signal.aborted) this.show(ablation);
    } catch (error) {
      if (!signal.aborted) this.clear(sentence(error));
    }
  }

  /** @param {Ablation} ablation */
  show(ablation) {
    this.ablation = ablation;
    const { parts, total, by } = ablation;
    const done = parts.length < total ? `${thousands(parts.length)} of ${thousands(total)}` : `All ${thousands(total)}`;
    setText(this.status, `${done} ${by}s were left out in turn. The token is ${visible(unescapeName(ablation.token_name))}, compared with `
      + `${visible(unescapeName(ablation.rival_name))}.`);
    replace(this.text, ...tintText(ablation));
    const rows = [...parts].sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect)).slice(0, MOST_ROWS);
    replace(this.figures, table(`Without each ${by}`, COLUMNS, rows.map((part) => rowOf(part, ablation))));
    for (const part of [this.text, this.legend, this.figures, this.note]) part.hidden = false;
  }
}

/** @param {Ablation} found @returns {(HTMLElement | string)[]} the text; the largest loss has the most contrast */
function tintText({ parts, tokens }) {
  const pieces = [];
  let at = 0;
  for (const { start, stop, effect } of [...parts].sort((a, b) => a.start - b.start)) {
    if (at < start) pieces.push(textOf(tokens.slice(at, start)));
    const share = Math.min(Math.max(effect, 0) / LN2 / MOST_BITS, 1);
    pieces.push(el("span", { style: { background: heat(share) }, title: `log p lost ${withSign(effect, 3)}` }, textOf(tokens.slice(start, stop))));
    at = stop;
  }
  return [...pieces, textOf(tokens.slice(at))];
}

/** @param {string[]} tokens as the server names them @returns {string} */
const textOf = (tokens) => escapeInvisible(unescapeName(tokens.join("")));

/** @param {AblatedPart} part @param {Ablation} ablation @returns {HTMLElement} */
function rowOf({ start, stop, tokens, weight, attribution, effect, margin, drawn: drawnId, drawn_token }, ablation) {
  const place = stop - start > 1 ? `${start}–${stop - 1}` : String(start);
  const other = drawnId !== null && drawnId !== ablation.drawn && drawn_token !== null;
  return el("tr", {}, figure(place), el("th", { scope: "row" }, token(unescapeName(tokens.join("")))),
    figure(percent(weight)), figure(withSign(attribution, 3)), figure(withSign(effect, 3)), figure(withSign(margin, 3)),
    el("td", {}, other && token(unescapeName(drawn_token))));
}

/** @param {string} name @param {string[][]} options @returns {{label: HTMLElement, field: HTMLSelectElement}} */
function select(name, options) {
  const field = el("select", {}, ...options.map(([value, text]) => el("option", { value }, text ?? "")));
  return { label: el("label", { class: "row" }, name, field), field };
}

customElements.define("without-panel", WithoutPanel);
