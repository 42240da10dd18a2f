/**
 * The tokens of the selected run and their cost at a given price, and those of all runs together.
 */

import { costLine, priceOf, tokensLine, total, usageOf } from "../figures/cost.js";
import { el, replace, setText } from "../parts/dom.js";
import { View } from "../parts/view.js";

class PriceBox extends View {
  input = field("price-in", () => this.put());
  output = field("price-out", () => this.put());
  wrong = el("p", { class: "said-of", role: "alert" });
  runLine = el("p", { class: "mono" });
  allRunsLine = el("p", { class: "mono faint" });

  build() {
    const { price } = this.store.state;
    if (price) [this.input.value, this.output.value] = [String(price.input), String(price.output)];
    replace(this, el("p", { class: "faint" }, "The price of a million tokens, in any currency. ",
      "Input tokens are paid for each time they are sent, so every turn of a conversation costs more than the one before."),
    el("div", { class: "row" }, el("label", { for: "price-in" }, "in"), this.input,
      el("label", { for: "price-out" }, "out"), this.output), this.wrong, this.runLine, this.allRunsLine);
  }

  draw() {
    const { run, state } = this.store;
    if (!this.closest("details")?.open) return;
    const sum = total(state.runs.map(usageOf));
    const parts = (/** @type {import("../figures/cost.js").Usage} */ used) =>
      [tokensLine(used), ...(state.price ? [costLine(used, state.price)] : [])].join(" · ");
    setText(this.runLine, run ? `run ${run.id}: ${parts(usageOf(run))}` : "");
    setText(this.allRunsLine, state.runs.length > 1 ? `all ${state.runs.length} runs: ${parts(sum)}` : "");
  }

  put() {
    const [input, output] = [priceOf(this.input.value), priceOf(this.output.value)];
    const bad = [this.input, this.output].some((f) => f.value.trim() !== "" && priceOf(f.value) === null);
    this.wrong.textContent = bad ? "A price is a number, 0 or more, for example 0.15." : "";
    const none = input === null && output === null;
    this.store.set({ price: none ? null : { input: input ?? 0, output: output ?? 0 } });
  }
}

/** @param {string} id @param {() => void} oninput @returns {HTMLInputElement} */
const field = (id, oninput) =>
  el("input", { type: "text", inputmode: "decimal", id, size: 6, autocomplete: "off", oninput });

customElements.define("price-box", PriceBox);
