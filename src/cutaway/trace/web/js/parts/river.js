/**
 * The river of the selected step, the sentence that says the same, and under it the stations on one line: the way of a
 * token through the model and the sampler. Each station opens the panel that has more.
 */

import { riverDrawing } from "../drawings/river.js";
import { whySentence } from "../figures/endings.js";
import { riverOf, riverSentence } from "../figures/river.js";
import { stations } from "../figures/stations.js";
import { PANELS, applies } from "../state/panels.js";
import { drawn, el, morph, replace, setText, typeScale } from "./dom.js";
import { View, paced } from "./view.js";
/** @import { Station } from "../figures/stations.js" */
/** @import { Step } from "../state/trace.js" */
/** @import { Run } from "../state/store.js" */

class RiverView extends View {
  flow = el("div", { class: "flow" });
  says = el("p", { class: "says" });
  list = el("ol");
  pace = paced(() => this.show());

  build() {
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "How this token was chosen");
    this.flow.addEventListener("click", (event) => this.handleBand(event));
    this.list.addEventListener("click", (event) => this.handleStation(event));
    new ResizeObserver(() => this.draw()).observe(this.flow);
    replace(this, this.flow, this.list, this.says);
  }

  draw() {
    this.hidden = !this.store.run?.trace.known;
    if (!this.hidden) this.pace();
  }

  show() {
    const { run, state } = this.store;
    if (!run?.trace.known) return;
    const { passes, steps } = run.trace;
    const pass = passes[state.pass ?? passes.length - 1];
    const all = stations(run.trace, steps[state.step], this.session.insides.ready, pass);
    const why = run.trace.end && { id: "end", name: "why it ended", panel: "why", caption: whySentence(run.trace), figures: [] };
    morph(this.list, el("ol", {}, ...[...all, ...(why ? [why] : [])].map((station) => this.station(station))));
    this.drawFlow(run, steps[state.step]);
  }

  /** @param {Run} run @param {Step | undefined} step undefined: it has none yet */
  drawFlow({ trace }, step) {
    const width = this.flow.clientWidth;
    if (!step || !width) return replace(this.flow), setText(this.says, trace.head.decoder ? "This cell has no token yet." : "");
    const river = riverOf(trace, step);
    const selected = step.candidates[this.store.state.candidate]?.id ?? null;
    const picture = drawn(riverDrawing(river, { width, scale: typeScale(), selected, exit: this.exit() }));
    const old = this.flow.querySelector("svg");
    if (old) morph(old, picture);
    else this.flow.append(picture);
    setText(this.says, riverSentence(river));
  }

  /** @returns {number | null} where the selected token is in the text above, if it is in sight */
  exit() {
    const chip = document.querySelector("token-strip .chip[aria-current]");
    const text = chip?.closest(".tokens");
    if (!chip || !text) return null;
    const [token, box, flow] = [chip, text, this.flow].map((one) => one.getBoundingClientRect());
    if (!token || !box || !flow || token.bottom < box.top || token.top > box.bottom) return null;
    return token.left + token.width / 2 - flow.left;
  }

  /** @param {Station} station @returns {HTMLElement} a button where a panel has more */
  station({ id, name, panel, figures, caption }) {
    const opens = this.can(panel);
    const here = figures.length ? ` Here: ${figures.join(", ")}.` : "";
    const title = `${caption}${here}${opens ? ` Opens: ${PANELS.get(panel)?.label}.` : ""}`;
    const pressed = String(this.store.state.panel === panel);
    return el("li", { class: `station at-${id}` }, opens
      ? el("button", { type: "button", class: "link", "data-panel": panel, "aria-pressed": pressed, title }, name)
      : el("span", { title }, name));
  }

  /** @param {string} panel @returns {boolean} whether this page has it, for this model */
  can(panel) {
    const element = PANELS.get(panel)?.element;
    return element !== undefined && customElements.get(element) !== undefined && applies(panel, this.store.state);
  }

  /** @param {Event} event */
  handleStation(event) {
    const panel = /** @type {Element} */ (event.target).closest("[data-panel]")?.getAttribute("data-panel");
    if (!panel) return;
    this.store.set({ panel });
    const tabs = document.querySelector("panel-tabs");
    if (tabs && tabs.getBoundingClientRect().top > innerHeight * 0.7) tabs.scrollIntoView(); // on a phone
  }

  /** @param {Event} event a band's candidate is selected, as by its row in the table */
  handleBand(event) {
    const id = Number(/** @type {Element} */ (event.target).closest("[data-id]")?.getAttribute("data-id") ?? NaN);
    const { run, state } = this.store;
    const candidate = run?.trace.steps[state.step]?.candidates.findIndex((c) => c.id === id) ?? -1;
    if (candidate >= 0) this.store.set({ candidate });
  }
}

customElements.define("river-view", RiverView);
