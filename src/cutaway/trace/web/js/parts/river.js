/**
 * The river of the selected step, handles on its gates, the sentence that says the same, and the stations on one line:
 * the way of a token through the model and the sampler. Each station opens the panel that has more.
 */

import { picture } from "../drawings/marks.js";
import { layoutOf } from "../drawings/places.js";
import { riverDrawing } from "../drawings/river.js";
import { labelOf } from "../figures/catalogue.js";
import { whySentence } from "../figures/endings.js";
import { riverOf, riverSentence } from "../figures/river.js";
import { stations } from "../figures/stations.js";
import { PANELS, applies } from "../state/panels.js";
import { button, el, morph, redraw, replace, setText, svg, typeScale } from "./dom.js";
import { View, throttle } from "./view.js";
/** @import { Layout } from "../drawings/places.js" */
/** @import { Param } from "../figures/catalogue.js" */
/** @import { Gate } from "../figures/river.js" */
/** @import { Other } from "../state/what-if.js" */
/** @import { Station } from "../figures/stations.js" */
/** @import { Step } from "../state/trace.js" */
/** @import { Run } from "../state/store.js" */

const NOTHING = { width: 1, height: 1 }; // the drawing before the first step
const THUMB = 14; // pixels of a handle, as in the sheet

/** @param {Step} step @returns {string} */
const describeApproximation = ({ candidates }) =>
  `Approximated from the record: its ${candidates.length} candidates, and the histogram of the others.`;

const HINT = "Drag a handle on a gate: what would the same luck have drawn?";

/** @param {Step} step as recorded @param {Other} other @param {boolean} hasModel @returns {string} how far the figures are to be trusted */
function describeTrust(step, { step: now, isExact, error }, hasModel) {
  if (error) return `${error} ${describeApproximation(step)}`;
  if (!isExact) return hasModel ? "From the record, until the model has computed the step again …" : describeApproximation(step);
  if (now?.logits_hash === step.logits_hash) return `Exact: computed again by the model, row hash ${step.logits_hash} as recorded.`;
  return "Computed again; the logits differ from the record: another model computed them.";
}

class RiverView extends View {
  picture = svg("svg");
  flow = el("div", { class: "flow" }, this.picture);
  says = el("p", { class: "says" });
  list = el("ol");
  shownStations = "";
  pace = throttle(this, () => this.show());
  /** @type {Map<string, HTMLInputElement>} of the gates that have a handle, by setting */
  handles = new Map();
  tells = el("span", { class: "tells", "aria-live": "polite" });
  start = button("Run it", () => this.session.runWhatIf(),
    { class: "primary", title: "continue the text from here with these settings and the same luck" });
  reset = button("As recorded", () => this.store.set({ whatIf: null }));
  other = el("p", { class: "row other" }, this.tells, this.start, this.reset);

  build() {
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "How this token was chosen");
    this.flow.addEventListener("click", (event) => this.handleBand(event));
    this.list.addEventListener("click", (event) => this.handleStation(event));
    new ResizeObserver(() => this.draw()).observe(this.flow);
    replace(this, this.flow, this.list, this.says, this.other);
  }

  draw() {
    this.hidden = !this.store.run?.trace.known;
    if (this.hidden) return;
    if (this.store.state.whatIf) this.show(); // a handle is followed in every frame
    else this.pace();
  }

  show() {
    const { run, state } = this.store;
    if (!run?.trace.known) return;
    const { passes, steps } = run.trace;
    const pass = passes[state.pass ?? passes.length - 1];
    const all = stations(run.trace, steps[state.step], this.session.insides.ready, pass);
    const ending = run.trace.end && { id: "end", name: "why it ended", panel: "why", caption: whySentence(run.trace), figures: [] };
    const stationList = [...all, ...(ending ? [ending] : [])];
    const key = JSON.stringify([stationList, state.panel, state.about === null]);
    if (key !== this.shownStations) morph(this.list, el("ol", {}, ...stationList.map((station) => this.station(station))));
    this.shownStations = key;
    this.drawFlow(run, steps[state.step]);
  }

  /** @param {Run} run @param {Step | undefined} step undefined: it has none yet */
  drawFlow(run, step) {
    const width = this.flow.clientWidth;
    if (!width) return; // as in a window that is being resized
    const scale = typeScale();
    const other = this.session.whatIf.now;
    const current = step && { trace: other?.step ? other.trace : run.trace, step: other?.step ?? step };
    const river = current ? riverOf(current.trace, current.step) : null;
    const selected = step?.candidates[this.store.state.candidate]?.id ?? null;
    redraw(this.picture, river ? riverDrawing(river, { width, scale, selected, exit: this.exit() }) : picture(NOTHING, ""));
    this.drawHandles(river && !run.live ? river.gates : [], layoutOf(river?.gates.length ?? 0, width, scale));
    setText(this.says, river ? riverSentence(river) : run.trace.head.decoder ? "This cell has no token yet." : "");
    this.tell(step, other);
  }

  /** @param {Gate[]} gates @param {Layout} layout a handle on each that has one number, as far down as the number is large */
  drawHandles(gates, { gates: places, gate, top, deep, scale }) {
    const names = gates.flatMap(({ param }) => param?.name ?? []);
    for (const [name, input] of this.handles) if (!names.includes(name)) input.remove(), this.handles.delete(name);
    gates.forEach(({ param, value }, i) => {
      if (!param) return;
      const input = this.handles.get(param.name) ?? this.handle(param);
      const high = Math.max(param.high, value);
      const from = (deep * param.low) / high;
      if (Number(input.max) !== high) input.max = String(high);
      if (Number(input.value) !== value) input.value = String(value);
      input.style.left = `${(places[i] ?? 0) + gate / 2}px`;
      input.style.top = `${top + from - (THUMB / 2) * scale}px`;
      input.style.height = `${deep - from + THUMB * scale}px`;
    });
  }

  /** @param {Param} param @returns {HTMLInputElement} a new handle */
  handle({ name, low, high, step, help }) {
    const input = el("input", { type: "range", class: "handle", min: low, max: high, step,
      "aria-label": labelOf(name), "aria-orientation": "vertical",
      title: `${labelOf(name)}: ${help} Drag it, or use the arrow keys.`,
      oninput: () => this.session.whatIf.set(name, Number(input.value)) });
    this.handles.set(name, input);
    this.flow.append(input);
    return input;
  }

  /** @param {Step | undefined} step @param {Other | null} other where its figures come from; null: the record */
  tell(step, other) {
    this.other.hidden = !this.handles.size;
    this.start.hidden = !other || !this.store.state.about || other.error !== null;
    this.reset.hidden = !other;
    setText(this.tells, step && other ? describeTrust(step, other, this.store.state.about !== null) : HINT);
  }

  /** @returns {number | null} where the selected token is in the text above, if it is in sight */
  exit() {
    const chip = document.querySelector("token-strip .chip[aria-current]");
    const text = chip?.closest(".tokens");
    if (!chip || !text) return null;
    const [token, box, flow] = [chip, text, this.flow].map((element) => element.getBoundingClientRect());
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
